"""How the messages of a cohort become one update."""

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from coterie.core.tree import Tree


class Total(ABC):
    """One round's aggregation: fed with the messages as they come."""

    @abstractmethod
    def add(self, weights: Tensor, messages: Tree) -> None:
        """The messages of C clients, stacked along a leading axis, and their C weights."""

    def add_sum(self, weight: float, summed: Tree) -> None:
        """Messages that were summed, weights and all, before anybody saw a single one; `weight` is all they weigh."""
        raise NotImplementedError

    @abstractmethod
    def merge(self, other: Self) -> None:
        """What another total has seen, too."""

    @abstractmethod
    def result(self) -> Tree:
        """The update, with the sum of the weights under the name `weight`."""


class Rule(ABC):
    takes_sums: ClassVar[bool] = False
    """Whether its totals have `add_sum`; a rule that must see each message does not."""

    @abstractmethod
    def start(self) -> Total:
        """For a new round."""
