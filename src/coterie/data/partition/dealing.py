"""Helpers for partitions: shares as whole numbers of rows, and test rows that match the training rows.

A partition decides which client trains on which rows. `complete` does the rest: it gives the test rows of each class to
the clients that train on the class, in proportion to their training rows. A client's training, validation and test rows
therefore have the same mix of classes, and no client is tested on a class outside its label set.
"""

import logging
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.data.ragged import Ragged
from coterie.errors import UserError

Concentration = Annotated[float, Field(ge=1e-6, le=1e6)]
"""Concentration of a symmetric Dirichlet distribution. Beyond this range, its sampler sees only 0 or infinity."""

logger = logging.getLogger("coterie")


def check_size(num_rows: int, clients: int, minimum: int, keys: str) -> None:
    """Raise a UserError if there are fewer than `minimum` training examples per client. It suggests to lower `keys`."""
    if num_rows < clients * minimum:
        raise UserError(
            f"{clients} clients with at least {minimum} training examples each need {clients * minimum} examples, "
            f"but the data set has {num_rows}; lower {keys}"
        )


def check_classes(examples: Examples, scheme: str) -> None:
    """Raise a UserError if the examples have no classes, which this partition needs."""
    if not examples.has_classes:
        raise UserError(
            f"partition.name = '{scheme}' needs a class for each example, but these data have none; "
            "use 'iid', 'quantity' or 'feature-clusters', which do not need classes"
        )


def portions(weights: NDArray[Any], totals: Index | int, offsets: NDArray[np.float64] | float = 0.0) -> Index:
    """Divide each total among the clients in whole numbers, in proportion to its column of weights, (I,) or (I, C).

    The portions add up to the total, each portion is within one of its exact share, and a weight of 0 gets 0. If the
    offsets are uniform in [0, 1), the expected portion is the exact share. A column of zeros gets nothing.
    """
    ends = np.cumsum(weights, axis=0)
    some = ends[-1] > 0
    last = np.where(some, totals, 0)
    cuts = np.floor(ends * last / np.where(some, ends[-1], 1) + offsets).astype(np.int64)
    cuts[-1] = last
    return np.diff(np.minimum(cuts, last), axis=0, prepend=0)


def clients_of(y: Index, counts: Index, order: Index) -> Index:
    """Return the client of each row.

    Rows are taken in the given order. Of class c, the first counts[0, c] rows go to client 0, the next counts[1, c] to
    client 1, and so on. Remaining rows get -1: they belong to no client.
    """
    num_clients, num_classes = counts.shape
    beyond = np.bincount(y, minlength=num_classes) - counts.sum(axis=0)
    rows = order[np.argsort(y[order], kind="stable")]
    takers = np.tile(np.append(np.arange(num_clients), -1), num_classes)
    client_of_row = np.empty(len(y), dtype=np.int64)
    client_of_row[rows] = np.repeat(takers, np.vstack([counts, beyond]).T.ravel())
    return client_of_row


def rows_of(client_of_row: Index, num_clients: int) -> list[Index]:
    """Return the sorted rows of each client."""
    rows = Ragged.by_owner(client_of_row, num_clients)
    return [rows.row(i) for i in range(num_clients)]


def tally(client_of_row: Index, y: Index, num_clients: int, num_classes: int) -> Index:
    """Count the rows of each class that each client has, (I, C)."""
    cells = np.bincount(client_of_row * num_classes + y, minlength=num_clients * num_classes)
    return cells.reshape(num_clients, num_classes)


def complete(
    client_of_row: Index,
    examples: Examples,
    is_new: NDArray[np.bool_],
    rng: np.random.Generator,
    *,
    in_file_order: bool = False,
) -> Assignment:
    """Add test rows in the same mix of classes, and label sets, to training rows that are already assigned."""
    y_train, y_test, num_classes = examples.strata()
    num_clients = len(is_new)
    counts = tally(client_of_row, y_train, num_clients, num_classes)
    order = np.arange(len(y_test)) if in_file_order else rng.permutation(len(y_test))
    test_counts = portions(counts, np.bincount(y_test, minlength=num_classes), rng.random(num_classes))
    client_of_test = clients_of(y_test, test_counts, order)
    if left_out := np.count_nonzero(client_of_test < 0):
        logger.info(f"{left_out:,} test examples are omitted, because no client trains on their classes")
    return Assignment(
        rows_of(client_of_row, num_clients),
        rows_of(client_of_test, num_clients),
        examples.label_sets(counts),
        is_new,
    )
