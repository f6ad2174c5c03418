"""MNIST: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits", 1998."""

from coterie.data.dataset import Dataset
from coterie.data.mnist_family import load_family
from coterie.federation import Examples
from coterie.settings import settings


@settings
class MNIST(Dataset):
    """Handwritten digits, 28x28: 60000 to train, 10000 to test, 10 classes."""

    path: str | None = None
    """The folder of the four IDX files; without it, $COTERIE_DATA/mnist, then the user's cache."""

    def load(self) -> Examples:
        return load_family("mnist", "https://yann.lecun.com/exdb/mnist", self.path, labels=tuple("0123456789"))
