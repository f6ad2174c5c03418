"""What every scheme of this room is: settings that deal a data set's rows to clients."""

from abc import ABC, abstractmethod

import numpy as np

from coterie.federation import Assignment, Index


class Partition(ABC):
    @abstractmethod
    def assign(self, y_train: Index, y_test: Index, num_classes: int, rng: np.random.Generator) -> Assignment:
        """Each client's rows and classes, and who is new, from labels in 0..num_classes-1."""
