"""What every scheme of this room is: settings that deal a data set's rows to clients."""

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
    new_users: Share = 0.2
    """Share of the clients held out of training, rounded down."""
    validation: Share = 0.0
    """Share of each client's training examples kept for choosing between models, rounded down, class by class."""

    def assign(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        """Each client's rows and classes, and who is new."""
        assignment = self.deal(examples, rng)
        if examples.validation is not None:
            published = np.zeros(len(examples.y_train), dtype=np.bool_)
            published[examples.validation] = True
            return self._as_published(published, assignment)
        if not self.validation:
            return assignment
        of_train, *_ = examples.strata()
        parts = [_split(rows, of_train, self.validation, rng) for rows in assignment.train]
        train, validation = zip(*parts, strict=True)
        return assignment._replace(train=train, validation=validation)

    @abstractmethod
    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        """The same, all of a client's training rows together."""

    def _as_published(self, published: NDArray[np.bool_], assignment: Assignment) -> Assignment:
        """With the data's own validation examples, wherever they were dealt."""
        if self.validation:
            raise UserError(
                f"the data have validation examples of their own; leave out partition.validation = {self.validation}"
            )
        train = [rows[~published[rows]] for rows in assignment.train]
        return assignment._replace(train=train, validation=[rows[published[rows]] for rows in assignment.train])

    def held_out(self, num_clients: int, rng: np.random.Generator) -> NDArray[np.bool_]:
        """Who is new."""
        is_new = np.zeros(num_clients, dtype=np.bool_)
        is_new[rng.choice(num_clients, int(self.new_users * num_clients + 1e-9), replace=False)] = True
        return is_new


def _split(rows: Index, y: Index, share: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """(kept for training, kept for validation): the same mix of classes, and at least one row of each to train on."""
    shuffled = rng.permutation(rows)
    by_class: Sequence[Index] = [shuffled[y[shuffled] == label] for label in np.unique(y[rows])]
    counts = [int(share * len(each) + 1e-9) for each in by_class]
    train = np.concatenate([each[count:] for each, count in zip(by_class, counts, strict=True)])
    validation = np.concatenate([each[:count] for each, count in zip(by_class, counts, strict=True)])
    return np.sort(train), np.sort(validation)
