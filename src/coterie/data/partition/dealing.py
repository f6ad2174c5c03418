"""What schemes share: shares turned into whole rows, and test rows that follow the training rows.

A scheme decides who trains on what. `complete` does the rest: the test rows of each class go to the clients that train
on the class, in proportion to how much of it they train on. So a client's training, validation and test rows have one
mix of classes, and no client is tested on a class outside its label set.
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
"""Of a symmetric Dirichlet distribution, within what its sampler can tell from 0 and from infinity."""

logger = logging.getLogger("coterie")


def check_size(num_rows: int, clients: int, minimum: int, keys: str) -> None:
    if num_rows < clients * minimum:
        raise UserError(
            f"{clients} clients with at least {minimum} training examples each need {clients * minimum}, "
            f"and the data set has {num_rows}; lower {keys}"
        )


def check_classes(examples: Examples, scheme: str) -> None:
    if not examples.has_classes:
        raise UserError(
            f"partition.name = '{scheme}' needs a class for each example, and these data have none; "
            "'iid', 'quantity' and 'feature-clusters' do without"
        )


def portions(weights: NDArray[Any], totals: Index | int, offsets: NDArray[np.float64] | float = 0.0) -> Index:
    """Each total divided among the clients in proportion to its column of weights, (I,) or (I, C), in whole numbers.

    All of a total is dealt, each portion is within one of its exact share, and a weight of 0 gets 0. An offset that is
    uniform in [0, 1) makes the expectation of a portion its exact share. A column of zeros gets nothing.
    """
    ends = np.cumsum(weights, axis=0)
    some = ends[-1] > 0
    last = np.where(some, totals, 0)
    cuts = np.floor(ends * last / np.where(some, ends[-1], 1) + offsets).astype(np.int64)
    cuts[-1] = last
    return np.diff(np.minimum(cuts, last), axis=0, prepend=0)


def clients_of(y: Index, counts: Index, order: Index) -> Index:
    """The client of each row: of class c, and in that order of rows, the first counts[0, c] are client 0's, and so on.

    Rows beyond the counts are nobody's: -1.
    """
    num_clients, num_classes = counts.shape
    beyond = np.bincount(y, minlength=num_classes) - counts.sum(axis=0)
    rows = order[np.argsort(y[order], kind="stable")]
    takers = np.tile(np.append(np.arange(num_clients), -1), num_classes)
    client_of_row = np.empty(len(y), dtype=np.int64)
    client_of_row[rows] = np.repeat(takers, np.vstack([counts, beyond]).T.ravel())
    return client_of_row


def rows_of(client_of_row: Index, num_clients: int) -> list[Index]:
    """The sorted rows of each client."""
    rows = Ragged.by_owner(client_of_row, num_clients)
    return [rows.row(i) for i in range(num_clients)]


def tally(client_of_row: Index, y: Index, num_clients: int, num_classes: int) -> Index:
    """(I, C): how many rows of each class each client has."""
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
    """The training rows as they were dealt, test rows in the same mix, and the classes of the training rows."""
    y_train, y_test, num_classes = examples.strata()
    num_clients = len(is_new)
    counts = tally(client_of_row, y_train, num_clients, num_classes)
    order = np.arange(len(y_test)) if in_file_order else rng.permutation(len(y_test))
    test_counts = portions(counts, np.bincount(y_test, minlength=num_classes), rng.random(num_classes))
    client_of_test = clients_of(y_test, test_counts, order)
    if left_out := np.count_nonzero(client_of_test < 0):
        logger.info(f"{left_out:,} test examples are left out: nobody trains on their classes")
    return Assignment(
        rows_of(client_of_row, num_clients),
        rows_of(client_of_test, num_clients),
        examples.label_sets(counts),
        is_new,
    )
