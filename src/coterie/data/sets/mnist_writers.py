"""MNIST with the writer of each digit: C. Yadav, L. Bottou, "Cold Case: The Lost MNIST Digits", arXiv:1905.10498.

QMNIST traces every MNIST image back to the NIST form it was cut from. Its label files contain rows of eight integers:
the first is the class and the third is the writer. Row i of the training file describes MNIST's training image i. The
first 10,000 rows of the test file describe MNIST's test images.
"""

from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from coterie.core.data import Index
from coterie.data.examples import Examples, Groups
from coterie.data.files.fetch import File
from coterie.data.files.idx import read_integers
from coterie.data.files.locate import locate
from coterie.data.files.unpack import damaged
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.mnist import FILES, HOME_PAGE
from coterie.data.sets.mnist_family import load_family
from coterie.data.sets.split import split
from coterie.settings import settings

_FOLDER = "https://raw.githubusercontent.com/facebookresearch/qmnist/master"
_LABELS = tuple(
    File(f"qmnist-{name}-labels-idx2-int", (f"{_FOLDER}/qmnist-{name}-labels-idx2-int.gz",), checksum)
    for name, checksum in (
        ("train", "md5:0058f8dd561b90ffdd0f734c6a30e5e4"),
        ("test", "md5:5b5b05890a5e13444e108efe57b788aa"),
    )
)
_CLASS, _WRITER = 0, 2


@settings
class MNISTWriters(Dataset):
    """MNIST grouped by writer: 60,000 digits of 539 writers. A quarter of each writer's digits is for testing."""

    usual_partition: ClassVar[str] = "natural"

    path: str | None = None
    """Folder with MNIST's four files and QMNIST's two label files. Default: search mnist/ and qmnist-labels/ in
    $COTERIE_DATA and in the user's cache, then download."""
    split: Literal["within-writers", "official"] = "within-writers"
    """Split to use. By default, each writer's training digits are split. "official" is MNIST's own split, in which
    training and test digits are by different writers."""

    def files(self) -> list[Path]:
        return [
            *locate("mnist", FILES, HOME_PAGE, self.path),
            *locate("qmnist-labels", _LABELS, "https://github.com/facebookresearch/qmnist", self.path),
        ]

    def load(self) -> Examples:
        *images, train_labels, test_labels = self.files()
        mnist = load_family(images, labels=tuple("0123456789"))
        train, test = _writers(train_labels, mnist.y_train), _writers(test_labels, mnist.y_test)
        if self.split == "official":
            return mnist._replace(groups=_groups(train, test))
        learn, check = split(train, share=0.25)
        x, y = mnist.x_train, mnist.y_train
        return Examples(x[learn], y[learn], x[check], y[check], mnist.labels, _groups(train[learn], train[check]))


def _writers(path: Path, y: Index) -> Index:
    rows = read_integers(path, ndim=2)
    if rows.shape[1] != 8 or len(rows) < len(y):
        raise damaged(path, f"its shape is {rows.shape}, expected 8 columns and at least {len(y)} rows")
    if len(bad := np.flatnonzero(rows[: len(y), _CLASS] != y)):
        raise damaged(path, f"row {bad[0]} has class {rows[bad[0], _CLASS]} where MNIST has {y[bad[0]]}")
    return rows[: len(y), _WRITER]


def _groups(train: Index, test: Index) -> Groups:
    writers = np.unique(np.concatenate([train, test]))
    return Groups(np.searchsorted(writers, train), np.searchsorted(writers, test), tuple(map(str, writers)))
