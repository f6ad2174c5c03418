"""CIFAR-10: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009."""

from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from coterie.core.data import Index
from coterie.data.examples import Examples
from coterie.data.files.fetch import File
from coterie.data.files.locate import find, locate
from coterie.data.sets.cifar import Images, read_binary, read_python
from coterie.data.sets.dataset import Dataset
from coterie.settings import settings

_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
_HOME_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@settings
class CIFAR10(Dataset):
    """Colour photographs, 32x32, in 10 classes of equal size: 50,000 for training and 10,000 for testing."""

    usual_model: ClassVar[str] = "cnn-cifar"

    path: str | None = None
    """Folder with the batches in the binary (.bin) or the Python layout, or with the unpacked archive. Default: search
    $COTERIE_DATA/cifar-10 and the user's cache, then download."""
    batches: Annotated[int, Field(ge=1, le=5)] = 5
    """Number of training batches to use, each with 10,000 images. Use fewer if you do not need or have all five."""

    def files(self) -> list[Path]:
        names = [*(f"data_batch_{n}" for n in range(1, self.batches + 1)), "test_batch"]
        for layout in ("cifar-10-batches-bin/{}.bin", "{}", "cifar-10-batches-py/{}"):
            if found := find("cifar-10", [File(layout.format(name)) for name in names], self.path):
                return found
        binary = [_published(f"{name}.bin") for name in names]
        return locate("cifar-10", binary, _HOME_PAGE, self.path, instead="data.batches=1" if self.batches > 1 else "")

    def load(self) -> Examples:
        *train, test = (_read(path) for path in self.files())
        x_train, y_train = (np.concatenate(parts) for parts in zip(*train, strict=True))
        return Examples(x_train, y_train, *test, _LABELS)


def _published(name: str) -> File:
    return File(name, _URLS, "md5:c32a1d4ab5d03f1284b67883e8d87530", f"cifar-10-batches-bin/{name}")


def _read(path: Path) -> tuple[Images, Index]:
    if ".bin" in path.suffixes:
        return read_binary(path, label_byte=0, label_bytes=1, num_classes=10)
    return read_python(path, "labels", num_classes=10)
