"""Those who made the data are the clients: writers, roles, alphabets, sites.

S. Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097.

    1.  leave out groups with fewer than `minimum` training examples
    2.  of the others take `clients` at random, or all
    3.  a group's training rows and its test rows, as published, are the client's; it may have no test rows

Rows of groups that are not taken are dealt to nobody. A published test split can hold a class that its group does not
train on. Dropping such rows would flatter whoever is tested, so the label set of a client is that of all its rows, to
train on and to test.
"""

import logging

import numpy as np

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import rows_of
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from coterie.settings import Count, settings

logger = logging.getLogger("coterie")


@settings
class Natural(Partition):
    """Each group of the data set is a client: a writer, a role, an alphabet, a site (LEAF)."""

    clients: Count | None = None
    """Number of clients, new users among them: a random sample of the groups; all unless given."""
    minimum: Count = 1
    """Groups with fewer training examples are left out."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        groups = examples.groups
        if groups is None:
            raise UserError(
                "partition.name = 'natural' needs data that say who made each example, and these do not; "
                "choose another partition (coterie partitions)"
            )
        taken = self._take(np.bincount(groups.train, minlength=len(groups.names)), rng)
        client_of_group = np.full(len(groups.names), -1)
        client_of_group[taken] = np.arange(len(taken))
        of_train, of_test = client_of_group[groups.train], client_of_group[groups.test]
        return Assignment(
            rows_of(of_train, len(taken)),
            rows_of(of_test, len(taken)),
            _label_sets(examples, np.append(of_train, of_test), len(taken)),
            self.held_out(len(taken), rng),
            names=[groups.names[group] for group in taken],
        )

    def _take(self, sizes: Index, rng: np.random.Generator) -> Index:
        """Steps 1 and 2."""
        large = np.flatnonzero(sizes >= self.minimum)
        if len(large) < (self.clients or 1):
            raise UserError(
                f"{len(large)} of {len(sizes)} groups have at least {self.minimum} training examples; "
                f"lower partition.minimum{' or partition.clients' if self.clients else ''}"
            )
        if len(large) < len(sizes):
            logger.info(
                f"{len(sizes) - len(large):,} of {len(sizes):,} groups are left out: fewer than {self.minimum} "
                "training examples"
            )
        return large if self.clients is None else np.sort(rng.choice(large, self.clients, replace=False))


def _label_sets(examples: Examples, client_of_row: Index, num_clients: int) -> list[Index]:
    if not examples.has_classes:
        return examples.label_sets(np.ones((num_clients, 1)))
    num_classes = len(examples.labels)
    # Cells of nobody's rows are negative, and floor division keeps them so.
    cells = np.unique(client_of_row * num_classes + np.append(examples.y_train, examples.y_test))
    return [cells[where] % num_classes for where in rows_of(cells // num_classes, num_clients)]
