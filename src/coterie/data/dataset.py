"""What every data set of this room is: settings that load examples."""

from abc import ABC, abstractmethod

from coterie.federation import Examples


class Dataset(ABC):
    @abstractmethod
    def load(self) -> Examples:
        """The train and the test examples as published, before any client exists."""
