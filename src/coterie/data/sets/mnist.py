"""MNIST: Y. LeCun, C. Cortes, C. J. C. Burges, "The MNIST database of handwritten digits", 1998."""

from pathlib import Path

from coterie.data.examples import Examples
from coterie.data.files.locate import locate
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.mnist_family import family, load_family
from coterie.settings import settings

HOME_PAGE = "https://yann.lecun.com/exdb/mnist"
FILES = family(
    (
        "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "md5:d53e105ee54ea40749a09fcbcd1e9432",
        "md5:9fb629c4189551a2d022fa330f9573f3",
        "md5:ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://yann.lecun.com/exdb/mnist",
)


@settings
class MNIST(Dataset):
    """Handwritten digits, 28x28, in 10 classes: 60,000 for training and 10,000 for testing."""

    path: str | None = None
    """Folder with the four IDX files. Default: search $COTERIE_DATA/mnist and the user's cache, then download."""

    def files(self) -> list[Path]:
        return locate("mnist", FILES, HOME_PAGE, self.path)

    def load(self) -> Examples:
        return load_family(self.files(), labels=tuple("0123456789"))
