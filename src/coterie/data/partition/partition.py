"""Base class of all partitions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.errors import UserError
from coterie.settings import Share, settings


@settings
class Partition(ABC):
    """Settings that divide the rows of a data set among clients."""

    new_users: Share = 0.2
    """Share of the clients held out of training as new users, rounded down. In a recipe for your own data, the default
    is 0."""
    validation: Share = 0.0
    """Share of each client's training examples kept for validation, rounded down, class by class."""

    def assign(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        """Divide a data set among clients. Validation rows are separated from the training rows."""
        assignment = self.deal(examples, rng)
        if examples.validation is not None:
            published = np.zeros(len(examples.y_train), dtype=np.bool_)
            published[examples.validation] = True
            return self._as_published(published, assignment)
        if not self.validation:
            return assignment
        strata = np.concatenate(examples.strata()[:2])  # of test rows too, which some partitions train on
        parts = [_split(rows, strata, self.validation, rng) for rows in assignment.train]
        train, validation = zip(*parts, strict=True)
        return assignment._replace(train=train, validation=validation)

    @abstractmethod
    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        """Divide a data set among clients, with validation rows still part of the training rows."""

    def _as_published(self, published: NDArray[np.bool_], assignment: Assignment) -> Assignment:
        """Separate the validation rows that the data set publishes."""
        if self.validation:
            raise UserError(
                f"the data have their own validation examples; remove partition.validation = {self.validation}"
            )
        train = [rows[~published[rows]] for rows in assignment.train]
        return assignment._replace(train=train, validation=[rows[published[rows]] for rows in assignment.train])

    def held_out(self, num_clients: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Draw the new users. Return whether each client is new."""
        is_new = np.zeros(num_clients, dtype=np.bool_)
        is_new[rng.choice(num_clients, int(self.new_users * num_clients + 1e-9), replace=False)] = True
        return is_new


def _split(rows: Index, y: Index, share: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """Split rows into (training, validation), with the same mix of classes and a training row of each class."""
    shuffled = rng.permutation(rows)
    by_class: Sequence[Index] = [shuffled[y[shuffled] == label] for label in np.unique(y[rows])]
    counts = [int(share * len(each) + 1e-9) for each in by_class]
    train = np.concatenate([each[count:] for each, count in zip(by_class, counts, strict=True)])
    validation = np.concatenate([each[:count] for each, count in zip(by_class, counts, strict=True)])
    return np.sort(train), np.sort(validation)
