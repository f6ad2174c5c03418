"""How the replies of a cohort become one update."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from coterie.core.round import Update
from coterie.core.tree import Tree


class Total(ABC):
    """The aggregation of one round, which takes replies as they come."""

    @abstractmethod
    def add(self, weights: Tensor, tensors: Tree, numbers: Tree) -> None:
        """Add the replies of C clients, stacked along a leading axis, with their C weights."""

    @abstractmethod
    def merge(self, other: Self) -> None:
        """Add everything that another total has seen."""

    @abstractmethod
    def is_finite(self) -> bool:
        """Return whether everything that was added is finite. A sum is not finite if one of its terms is not."""

    @abstractmethod
    def result(self) -> Update:
        """Return the update of the round."""


class Sum(Total):
    """A total that can also take a sum of replies, without seeing the single replies."""

    @abstractmethod
    def add_sum(self, weight: float, tensors: Tree, numbers: Tree) -> None:
        """Add replies that were multiplied by their weights and summed; `weight` is the sum of the weights."""


class Rule(ABC):
    """An aggregation rule."""

    takes_sums: ClassVar[bool] = False
    """Whether its totals are a Sum. A rule that must see each reply cannot take sums."""

    @abstractmethod
    def start(self) -> Total:
        """Return the empty total of a new round."""
