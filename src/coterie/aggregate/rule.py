"""How the messages of a cohort become one update."""

from abc import ABC, abstractmethod

from coterie.tree import Tree


class Total(ABC):
    """One round's aggregation: fed with the messages as they come."""

    @abstractmethod
    def add(self, weight: float, message: Tree) -> None: ...

    @abstractmethod
    def result(self) -> Tree:
        """The update, with the sum of the weights under the name `weight`."""


class Rule(ABC):
    @abstractmethod
    def start(self) -> Total:
        """For a new round."""
