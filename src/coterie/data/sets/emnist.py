"""EMNIST ByClass: G. Cohen, S. Afshar, J. Tapson, A. van Schaik, "EMNIST: an extension of MNIST to handwritten
letters", arXiv:1702.05373.
"""

import string
from pathlib import Path
from typing import Literal

import numpy as np

from coterie.core.data import Index
from coterie.data.examples import Examples
from coterie.data.files.fetch import File
from coterie.data.files.idx import Bytes, read_labelled
from coterie.data.files.locate import find, locate
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.split import split
from coterie.settings import settings

_HOME_PAGE = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
_URLS = (
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
)
_TRAIN, _TEST = (
    tuple(
        File(name, _URLS, "md5:58c8d27c78d21e728a6bc7b3cc06412e", f"gzip/{name}.gz")
        for name in (f"emnist-byclass-{part}-images-idx3-ubyte", f"emnist-byclass-{part}-labels-idx1-ubyte")
    )
    for part in ("train", "test")
)
_LABELS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


@settings
class EMNIST(Dataset):
    """Handwritten digits and letters, 28x28, 62 classes of unequal size: 697,932 for training, 116,323 for testing."""

    path: str | None = None
    """Folder with the IDX files. Default: search $COTERIE_DATA/emnist and the user's cache, then download."""
    split: Literal["official", "test-only"] = "official"
    """Split to use. "test-only" uses only the official test images, a seventh of the data: a quarter for testing, the
    rest for training. These are also looked for in $COTERIE_DATA/emnist-byclass-test."""

    def files(self) -> list[Path]:
        if self.split == "official":
            return locate("emnist", (*_TRAIN, *_TEST), _HOME_PAGE, self.path, instead="data.split=test-only")
        return find("emnist-byclass-test", _TEST, self.path) or locate("emnist", _TEST, _HOME_PAGE, self.path)

    def load(self) -> Examples:
        paths = self.files()
        parts = [_read(*paths[start : start + 2]) for start in range(0, len(paths), 2)]
        if self.split == "test-only":
            ((x, y),) = parts
            train, test = split(y, share=0.25)
            parts = [(x[train], y[train]), (x[test], y[test])]
        (x_train, y_train), (x_test, y_test) = parts
        white = np.float32(255)
        return Examples(x_train / white, y_train, x_test / white, y_test, _LABELS)


def _read(images: Path, labels: Path) -> tuple[Bytes, Index]:
    """Read images and labels. The files store each image transposed, so turn it upright."""
    x, y = read_labelled(images, labels, (28, 28), len(_LABELS))
    return np.ascontiguousarray(x.swapaxes(1, 2)), y.astype(np.int64)
