"""K classes for each client, each class dealt evenly to the clients that hold it.

S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias, "Personalized Federated Learning with Exact Stochastic Gradient
Descent", arXiv:2202.09848: Section 4.3 for the degree of personalization K, Appendix A.2 for the dealing.

    1.  each client draws K distinct classes, uniformly
    2.  a share of the clients, drawn uniformly, is set apart as new users
    3.  each class that no existing client holds takes the place, at one random existing client, of a class that is
        then held by the most existing clients
    4.  for each class: shuffle its rows, deal them one at a time and in turn to its holders; train and test alike

Steps 2 and 3 are ours. Without 3 a new user could bring a class that training has never seen, and rows of a class
that nobody holds would be lost. As long as the existing clients hold at least as many places as there are classes,
3 always finds a class with two holders to spare one, so it ends after at most one swap a class.
"""

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import check_classes
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from coterie.settings import Count, settings

Holds = NDArray[np.bool_]
"""(I clients, C classes): who holds what."""


@settings
class Classes(Partition):
    """K random classes for each client, each class dealt evenly among its holders (PFLEGO, Appendix A.2)."""

    clients: Count = 50
    """Number of clients, new users among them."""
    classes_per_client: Count = 2
    """K, the size of each client's label set: fewer is more personal."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        check_classes(examples, "classes")
        y_train, num_classes = examples.y_train, len(examples.labels)
        self._check(num_classes, self.clients - int(self.new_users * self.clients + 1e-9))
        holds = _draw(self.clients, num_classes, self.classes_per_client, rng)
        is_new = self.held_out(self.clients, rng)
        _cover(holds, np.flatnonzero(~is_new), rng)
        train, test = _deal(y_train, holds, rng), _deal(examples.y_test, holds, rng)
        if starved := sum(len(rows) == 0 for rows in train):
            # A class with as many rows as there are clients cannot run out, and every client holds a class at least
            # as large as the K-th smallest.
            enough = np.sort(np.bincount(y_train, minlength=num_classes))[self.classes_per_client - 1]
            raise UserError(
                f"partition.clients = {self.clients}: {starved} of them get no training example; lower it "
                f"(this draw feeds {self.clients - starved}; up to {enough} clients are fed whatever the seed)"
            )
        return Assignment(train, test, [np.flatnonzero(own) for own in holds], is_new)

    def _check(self, num_classes: int, num_existing: int) -> None:
        K = self.classes_per_client
        if num_classes < K:
            raise UserError(f"partition.classes_per_client = {K} is more than the {num_classes} classes there are")
        if num_existing * K < num_classes:
            raise UserError(
                f"{num_existing} existing clients with {K} classes each cannot cover {num_classes} classes; "
                "raise partition.clients or partition.classes_per_client, or lower partition.new_users"
            )


def _draw(num_clients: int, num_classes: int, K: int, rng: np.random.Generator) -> Holds:
    chosen = rng.permuted(np.tile(np.arange(num_classes), (num_clients, 1)), axis=1)[:, :K]
    holds = np.zeros((num_clients, num_classes), dtype=np.bool_)
    np.put_along_axis(holds, chosen, True, axis=1)
    return holds


def _cover(holds: Holds, existing: Index, rng: np.random.Generator) -> None:
    """Step 3, in place."""
    owners = holds[existing].sum(axis=0)
    for unowned in np.flatnonzero(owners == 0):
        spare = rng.choice(np.flatnonzero(owners == owners.max()))
        client = rng.choice(existing[holds[existing, spare]])
        holds[client, [spare, unowned]] = False, True
        owners[[spare, unowned]] += -1, 1


def _deal(y: Index, holds: Holds, rng: np.random.Generator) -> list[Index]:
    """Step 4: the sorted rows of each client."""
    client_of_row = np.full(len(y), -1)  # so that a label out of range fails below instead of being lost
    for label, held in enumerate(holds.T):
        rows, holders = rng.permutation(np.flatnonzero(y == label)), np.flatnonzero(held)
        client_of_row[rows] = np.resize(holders, len(rows))
    by_client = np.argsort(client_of_row, kind="stable")
    ends = np.cumsum(np.bincount(client_of_row, minlength=len(holds)))
    return np.split(by_client, ends[:-1])
