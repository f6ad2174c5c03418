"""Partition by the origin of the data. Each writer, role, alphabet or site is a client.

S. Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097.

    1.  omit groups with fewer than `minimum` training examples
    2.  draw `clients` of the remaining groups at random, or use all of them
    3.  each client gets the training and test rows of its group, as published; it may have no test rows

Rows of other groups are not used. A published test split can contain a class that its group does not train on. Results
would look better than they are if these rows were dropped. The label set of a client therefore covers its training and
test rows.
"""

import logging
from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import rows_of
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from coterie.registry import nearest
from coterie.settings import Count, settings

logger = logging.getLogger("coterie")


@settings
class Natural(Partition):
    """One client for each group of the data set, such as a writer, a role, an alphabet or a site (LEAF)."""

    clients: Count | None = None
    """Number of clients, including new users, drawn at random from the groups. Default: all groups."""
    minimum: Count = 1
    """Minimum number of training examples. Smaller groups are omitted."""
    new_clients: list[str] = field(default_factory=list)
    """Names of the clients held out of training as new users. If it is set, no others are held out."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        groups = examples.groups
        if groups is None:
            raise UserError(
                "partition.name = 'natural' needs data that say where each example comes from, but these data do not; "
                "choose another partition (coterie partitions)"
            )
        taken = self._take(np.bincount(groups.train, minlength=len(groups.names)), rng)
        client_of_group = np.full(len(groups.names), -1)
        client_of_group[taken] = np.arange(len(taken))
        of_train, of_test = client_of_group[groups.train], client_of_group[groups.test]
        names = [groups.names[group] for group in taken]
        return Assignment(
            rows_of(of_train, len(taken)),
            rows_of(of_test, len(taken)),
            _label_sets(examples, np.append(of_train, of_test), len(taken)),
            self._named(names, groups.names) if self.new_clients else self.held_out(len(taken), rng),
            names=names,
        )

    def _named(self, names: list[str], groups: Sequence[str]) -> NDArray[np.bool_]:
        """Return whether each client is one of `new_clients`."""
        if self.new_users:
            raise UserError(
                f"partition.new_clients names the new users, so partition.new_users = {self.new_users} must be 0; "
                "remove one of them"
            )
        for name in self.new_clients:
            if name not in groups:
                raise UserError(
                    f"partition.new_clients names {name!r}, which is not a client of these data{nearest(name, groups)}"
                )
            if name not in names:
                raise UserError(
                    f"partition.new_clients names {name!r}, which is not used because of partition.clients or "
                    "partition.minimum; remove it or change them"
                )
        return np.isin(np.arange(len(names)), [names.index(name) for name in self.new_clients])

    def _take(self, sizes: Index, rng: np.random.Generator) -> Index:
        """Do steps 1 and 2. Return the numbers of the groups to use."""
        large = np.flatnonzero(sizes >= self.minimum)
        if len(large) < (self.clients or 1):
            raise UserError(
                f"only {len(large)} of {len(sizes)} groups have at least {self.minimum} training examples; "
                f"lower partition.minimum{' or partition.clients' if self.clients else ''}"
            )
        if len(large) < len(sizes):
            logger.info(
                f"{len(sizes) - len(large):,} of {len(sizes):,} groups are omitted, because they have fewer than "
                f"{self.minimum} training examples"
            )
        return large if self.clients is None else np.sort(rng.choice(large, self.clients, replace=False))


def _label_sets(examples: Examples, client_of_row: Index, num_clients: int) -> list[Index]:
    if not examples.has_classes:
        return examples.label_sets(np.ones((num_clients, 1)))
    num_classes = len(examples.labels)
    # Rows that belong to no client give negative cells, and floor division keeps these negative.
    cells = np.unique(client_of_row * num_classes + np.append(examples.y_train, examples.y_test))
    return [cells[where] % num_classes for where in rows_of(cells // num_classes, num_clients)]
