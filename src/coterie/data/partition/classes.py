"""Partition with K classes for each client. Each class is divided evenly among the clients that hold it.

S. Nikoloutsopoulos, I. Koutsopoulos, M. K. Titsias, "Personalized Federated Learning with Exact Stochastic Gradient
Descent", arXiv:2202.09848. Section 4.3 describes the degree of personalization K, and Appendix A.2 the assignment.

    1.  each client draws K distinct classes, uniformly
    2.  a share of the clients, drawn uniformly, is held out as new users
    3.  each class that no existing client holds is given to one random existing client; it replaces one of the classes
        that most existing clients hold at that point
    4.  for each class: shuffle its rows and give them to its holders one at a time, in turn; the same for training and
        test rows

Steps 2 and 3 are ours. Without step 3, a new user could have a class that training has never seen, and rows of a class
that no client holds would be lost. If the existing clients together hold at least as many classes as there are, step 3
always finds a class with at least two holders, so it ends after at most one swap per class.
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
"""(I clients, C classes): whether each client holds each class."""


@settings
class Classes(Partition):
    """K random classes for each client; each class is divided evenly among its holders (PFLEGO, Appendix A.2)."""

    clients: Count = 50
    """Number of clients, including new users."""
    classes_per_client: Count = 2
    """K, the size of each client's label set. A smaller K means stronger personalization."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        check_classes(examples, "classes")
        y_train, num_classes = examples.y_train, len(examples.labels)
        self._check(num_classes, self.clients - int(self.new_users * self.clients + 1e-9))
        # A class with at least as many rows as there are clients cannot run out. Every client holds a class that is at
        # least as large as the K-th smallest.
        enough = np.sort(np.bincount(y_train, minlength=num_classes))[self.classes_per_client - 1]
        if self.clients > len(y_train):
            raise UserError(
                f"partition.clients = {self.clients}: there are only {len(y_train)} training examples; lower it "
                f"(up to {enough} clients with any seed)"
            )
        holds = _draw(self.clients, num_classes, self.classes_per_client, rng)
        is_new = self.held_out(self.clients, rng)
        _cover(holds, np.flatnonzero(~is_new), rng)
        train, test = _deal(y_train, holds, rng), _deal(examples.y_test, holds, rng)
        if starved := sum(len(rows) == 0 for rows in train):
            raise UserError(
                f"partition.clients = {self.clients}: {starved} clients get no training examples; lower it "
                f"({self.clients - starved} clients get some with this seed; up to {enough} clients with any seed)"
            )
        return Assignment(train, test, [np.flatnonzero(own) for own in holds], is_new)

    def _check(self, num_classes: int, num_existing: int) -> None:
        K = self.classes_per_client
        if num_classes < K:
            raise UserError(
                f"partition.classes_per_client = {K} is more than the {num_classes} classes of the data set; lower it"
            )
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
    """Do step 3, in place: give each class to at least one existing client."""
    owners = holds[existing].sum(axis=0)
    for unowned in np.flatnonzero(owners == 0):
        spare = rng.choice(np.flatnonzero(owners == owners.max()))
        client = rng.choice(existing[holds[existing, spare]])
        holds[client, [spare, unowned]] = False, True
        owners[[spare, unowned]] += -1, 1


def _deal(y: Index, holds: Holds, rng: np.random.Generator) -> list[Index]:
    """Do step 4. Return the sorted rows of each client."""
    client_of_row = np.full(len(y), -1)  # a label out of range then fails below instead of being lost
    for label, held in enumerate(holds.T):
        rows, holders = rng.permutation(np.flatnonzero(y == label)), np.flatnonzero(held)
        client_of_row[rows] = np.resize(holders, len(rows))
    by_client = np.argsort(client_of_row, kind="stable")
    ends = np.cumsum(np.bincount(client_of_row, minlength=len(holds)))
    return np.split(by_client, ends[:-1])
