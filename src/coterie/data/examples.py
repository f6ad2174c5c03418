"""Data sets before and after they are divided among clients."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index


class Groups(NamedTuple):
    """The origin of each example, if it is known: a writer, a role, an alphabet, a site."""

    train: Index
    """Group of each training example."""
    test: Index
    """Group of each test example."""
    names: tuple[str, ...]
    """Names of the groups."""


class Choices(TypedDict, total=False):
    """Keyword arguments that every `Federation.from_...` constructor accepts besides the data."""

    new: Sequence[str]
    """Clients held out of training as new users. Default: none."""
    classes: Mapping[str, Sequence[Any]]
    """Label sets of clients that have more classes than their training examples contain."""
    test: float
    """Share of each client's examples used for testing if the data contain no test split. Default: 0.25."""
    validation: float
    """Share of each client's examples used for validation if the data contain no validation split. Default: 0."""
    seed: int
    """Seed of the random test and validation splits, which are stratified by class. Default: 0."""
    regression: bool
    """Whether the labels are numbers to predict, not classes. Scale them to about unit variance. Default: False."""
    tokens: bool
    """Whether the inputs are integer tokens for a model with an embedding, not quantities. Default: False."""


class Examples(NamedTuple):
    """A data set as published, before it is divided among clients.

    The type of `y` determines the task. Integers 0..C-1 are classes, named by `labels`: one for each example, or one
    for each position of a sequence, where -1 marks padding. Floating-point numbers are regression targets; `labels` is
    then empty.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    labels: tuple[Any, ...]
    groups: Groups | None = None
    validation: Index | None = None
    """Rows of the training set that are published as validation examples."""
    edges: Index | None = None
    """(2, E) edges, in both directions, if the examples are nodes of a graph.

    Nodes are numbered by their row: first the training set, then the test set.
    """

    @property
    def has_classes(self) -> bool:
        """Whether each example has exactly one class, so that clients can differ in their mix of classes."""
        return self.y_train.ndim == 1 and self.y_train.dtype.kind in "iu"

    def strata(self) -> tuple[Index, Index, int]:
        """Return the stratum of each training row, the stratum of each test row, and the number of strata.

        Strata are the classes. Without classes, all rows form one stratum.
        """
        if self.has_classes:
            return self.y_train, self.y_test, len(self.labels)
        return np.zeros(len(self.y_train), np.int64), np.zeros(len(self.y_test), np.int64), 1

    def label_sets(self, counts: NDArray[Any]) -> list[Index]:
        """Return the label set of each client, given `counts` (I, strata), its number of rows in each stratum.

        Without classes, every client gets all labels.
        """
        if self.has_classes:
            return [np.flatnonzero(own) for own in counts]
        return [np.arange(len(self.labels))] * len(counts)


class Assignment(NamedTuple):
    """The result of a partition: training rows, test rows and label set of each client, and which clients are new."""

    train: Sequence[Index]
    test: Sequence[Index]
    classes: Sequence[Index]
    is_new: NDArray[np.bool_]
    names: Sequence[str] = ()
    """Names of the clients. By default, "0", "1" and so on."""
    validation: Sequence[Index] = ()
    """Rows of the training set kept for validation. A client's validation rows are never in its `train` rows."""
    resplit: bool = False
    """Whether training and test rows were divided again. All rows are then numbered over the training set followed by
    the test set."""
