"""What every data set of this room is: settings that load examples."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from coterie.data.examples import Examples


class Dataset(ABC):
    usual_partition: ClassVar[str] = "classes"
    """Where the recipe names none; data that come with their clients keep them."""

    usual_model: ClassVar[str] = "mlp"
    """Likewise."""

    @abstractmethod
    def load(self) -> Examples:
        """The train and the test examples as published, before any client exists."""

    def files(self) -> list[Path]:
        """What it reads, downloaded where it is not at hand; nothing where it comes with Coterie."""
        return []
