"""A data set before and after it is dealt to clients."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index


class Groups(NamedTuple):
    """Who made each example, where that is known: a writer, a role, an alphabet, a site."""

    train: Index
    test: Index
    names: tuple[str, ...]


class Choices(TypedDict, total=False):
    """What every `Federation.from_...` takes besides the data."""

    new: Sequence[str]
    """The clients held out as new users; nobody unless given."""
    classes: Mapping[str, Sequence[Any]]
    """Label sets of clients that have more classes than they train on."""
    test: float
    """Share of a client's examples to test on, where the data do not say which: 0.25 unless given."""
    validation: float
    """Likewise for choosing between models: none unless given."""
    seed: int
    """Of the draw of those shares, which is stratified by class; 0 unless given."""
    regression: bool
    """The labels are numbers to be predicted as such, not classes; bring them to about unit variance."""
    tokens: bool
    """The inputs are whole numbers that name something, for a model with an embedding; not amounts."""


class Examples(NamedTuple):
    """A data set as it is published: no clients yet.

    y says what is asked: whole numbers 0..C-1, named by `labels`, one for each example or one for each position of a
    sequence (there, -1 is padding); or floating-point numbers, which are to be predicted as such and have no `labels`.
    """

    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    labels: tuple[Any, ...]
    groups: Groups | None = None
    validation: Index | None = None
    """Rows of the train set that are published as validation examples."""
    edges: Index | None = None
    """(2, E) where the examples are nodes of a graph: rows of the train set, then of the test set; both directions."""

    @property
    def has_classes(self) -> bool:
        """Whether each example has a class: only then are there mixes of classes to speak of."""
        return self.y_train.ndim == 1 and self.y_train.dtype.kind in "iu"

    def strata(self) -> tuple[Index, Index, int]:
        """(of each train row, of each test row, their number): classes, or else one stratum of all rows."""
        if self.has_classes:
            return self.y_train, self.y_test, len(self.labels)
        return np.zeros(len(self.y_train), np.int64), np.zeros(len(self.y_test), np.int64), 1

    def label_sets(self, counts: NDArray[Any]) -> list[Index]:
        """Of clients that have so many rows of each stratum, (I, strata); without classes, all labels for everyone."""
        if self.has_classes:
            return [np.flatnonzero(own) for own in counts]
        return [np.arange(len(self.labels))] * len(counts)


class Assignment(NamedTuple):
    """What a partition decides: rows of the train and of the test set for each client, its classes, who is new."""

    train: Sequence[Index]
    test: Sequence[Index]
    classes: Sequence[Index]
    is_new: NDArray[np.bool_]
    names: Sequence[str] = ()
    """Of the clients; "0", "1", ... unless given."""
    validation: Sequence[Index] = ()
    """Rows of the train set that are kept for choosing between models; no client's are also in its `train`."""
