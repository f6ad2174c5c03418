"""CIFAR-100: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009."""

from pathlib import Path
from typing import ClassVar, Literal

from coterie.data.examples import Examples
from coterie.data.files import pickles
from coterie.data.files.fetch import File
from coterie.data.files.locate import find, locate
from coterie.data.files.unpack import content, damaged
from coterie.data.sets.cifar import read_binary, read_python
from coterie.data.sets.dataset import Dataset
from coterie.settings import settings

_URLS = ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",)
_HOME_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_COUNT = {"coarse": 20, "fine": 100}
_BYTE = {"coarse": 0, "fine": 1}


@settings
class CIFAR100(Dataset):
    """Colour photographs, 32x32, in 100 classes of equal size: 50,000 for training and 10,000 for testing."""

    usual_partition: ClassVar[str] = "dirichlet"
    usual_model: ClassVar[str] = "cnn-cifar"

    path: str | None = None
    """Folder with the binary files (.bin, and label names in .txt), the Python files (train, test, meta), or the
    unpacked archive. Default: search $COTERIE_DATA/cifar-100 and the user's cache, then download."""
    labels: Literal["fine", "coarse"] = "fine"
    """Labels to predict: "fine" for the 100 classes, "coarse" for their 20 superclasses of five classes each."""

    def files(self) -> list[Path]:
        binary, python = ("train.bin", "test.bin", f"{self.labels}_label_names.txt"), ("train", "test", "meta")
        for folder, names in (("cifar-100-binary/", binary), ("", python), ("cifar-100-python/", python)):
            if found := find("cifar-100", [File(folder + name) for name in names], self.path):
                return found
        return locate("cifar-100", [_published(name) for name in binary], _HOME_PAGE, self.path)

    def load(self) -> Examples:
        train, test, meta = self.files()
        count = _COUNT[self.labels]
        if ".bin" in train.suffixes:
            names = content(meta, cost=64).decode("utf-8", "replace").split()
            parts = [read_binary(path, _BYTE[self.labels], 2, count) for path in (train, test)]
        else:
            names = _named(meta, f"{self.labels}_label_names")
            parts = [read_python(path, f"{self.labels}_labels", count) for path in (train, test)]
        if len(names) != count:
            raise damaged(meta, f"it names {len(names)} classes, expected {count}")
        return Examples(*parts[0], *parts[1], labels=tuple(names))


def _published(name: str) -> File:
    return File(name, _URLS, "md5:03b5dce01913d631647c71ecec9e9cb8", f"cifar-100-binary/{name}")


def _named(meta: Path, key: str) -> list[str]:
    tree = pickles.load(meta)
    names = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise damaged(meta, f"it has no list of names {key!r}")
    return names
