"""Partition with K consecutive classes for each client, as in FedCR's public code (its rule "noniid").

    1.  client i holds the classes i, i + 1, ..., i + K - 1, counted modulo the number of classes
    2.  the client with the fewest rows takes one row of its class of which it has the fewest, until all rows are dealt;
        ties between clients are broken at random, and a client whose classes are used up takes nothing more
    3.  with `test` > 0, the published training and test rows are dealt together, and each client's rows are then split
        at random, not class by class: the published split is ignored
    4.  with `test` = 0, only the training rows are dealt; test rows follow in the same mix of classes

If all classes have the same size and there are as many clients as classes, or a multiple, all clients get equally many
rows of each of their classes. Code that draws test rows independently of classes, as in step 3, leaves a client with
slightly different mixes for training and testing.
"""

import numpy as np

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import check_classes, check_size, complete, rows_of, tally
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from coterie.settings import Count, Share, settings


@settings
class Consecutive(Partition):
    """K consecutive classes for each client, in equal amounts; optionally all data split again (as in FedCR's code)."""

    clients: Count = 50
    """Number of clients, including new users."""
    classes_per_client: Count = 5
    """K, the number of classes of each client."""
    test: Share = 0.0
    """Share of each client's rows for testing, after the published training and test rows are put together. 0 keeps the
    published split."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        check_classes(examples, "consecutive")
        num_classes = len(examples.labels)
        self._check(examples, num_classes)
        y = np.append(examples.y_train, examples.y_test) if self.test else examples.y_train
        check_size(len(y), self.clients, 1, "partition.clients")
        client_of_row = _deal(y, self._holds(num_classes), rng)
        if starved := self.clients - len(np.unique(client_of_row)):
            raise UserError(
                f"partition.clients = {self.clients}: {starved} clients get no examples, because their classes are "
                "too small; lower it"
            )
        is_new = self.held_out(self.clients, rng)
        if not self.test:
            return complete(client_of_row, examples, is_new, rng)
        train, test = zip(
            *(self._cut(rng.permutation(rows)) for rows in rows_of(client_of_row, self.clients)), strict=True
        )
        classes = examples.label_sets(tally(client_of_row, y, self.clients, num_classes))
        return Assignment(train, test, classes, is_new, resplit=True)

    def _check(self, examples: Examples, num_classes: int) -> None:
        K = self.classes_per_client
        if num_classes < K:
            raise UserError(
                f"partition.classes_per_client = {K} is more than the {num_classes} classes of the data set; lower it"
            )
        if self.clients + K - 1 < num_classes:
            raise UserError(
                f"{self.clients} clients with {K} consecutive classes each do not cover {num_classes} classes; "
                "raise partition.clients or partition.classes_per_client"
            )
        if self.test and examples.validation is not None:
            raise UserError(
                "the data have their own validation examples, which partition.test would mix with the others; "
                "set it to 0"
            )

    def _holds(self, num_classes: int) -> Index:
        """Do step 1. Return the classes of each client, (I, K)."""
        return (np.arange(self.clients)[:, None] + np.arange(self.classes_per_client)) % num_classes

    def _cut(self, rows: Index) -> tuple[Index, Index]:
        """Cut a client's shuffled rows into training and test rows, sorted. 700 rows and 0.3 give 489 and 211."""
        train = max(1, int((1 - self.test) * len(rows)))  # rounds like the code that it follows
        return np.sort(rows[:train]), np.sort(rows[train:])


def _deal(y: Index, holds: Index, rng: np.random.Generator) -> Index:
    """Do step 2. Return the client of each row.

    Between two rows that a client takes, every other client takes one: so each turn is a random order of all clients.
    """
    waiting = [rng.permutation(np.flatnonzero(y == label)).tolist() for label in range(holds.max() + 1)]
    own = [[0] * holds.shape[1] for _ in holds]
    classes: list[list[int]] = holds.tolist()
    client_of_row = np.full(len(y), -1)
    active = np.arange(len(holds))
    while len(active):
        served = []
        for client in rng.permutation(active).tolist():
            places = [place for place, label in enumerate(classes[client]) if waiting[label]]
            if places:
                place = min(places, key=own[client].__getitem__)
                client_of_row[waiting[classes[client][place]].pop()] = client
                own[client][place] += 1
                served.append(client)
        active = np.array(served)
    return client_of_row
