"""Base class of all data sets."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from coterie.data.examples import Examples


class Dataset(ABC):
    """Settings that load a data set."""

    usual_partition: ClassVar[str] = "classes"
    """Partition used when the recipe names none. Data that already belong to clients use "natural"."""

    usual_model: ClassVar[str] = "mlp"
    """Model used when the recipe names none."""

    usual_new_users: ClassVar[float | None] = None
    """Share of new users when the recipe names none. None is the default of the partition."""

    @abstractmethod
    def load(self) -> Examples:
        """Return the training and test examples as published, before they are divided among clients."""

    def files(self) -> list[Path]:
        """Return the files to read, downloading them if necessary. Empty if the data need no files."""
        return []
