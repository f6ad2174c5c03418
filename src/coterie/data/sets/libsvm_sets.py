"""Data sets of the LIBSVM collection that papers on convex federated learning use. All have two classes.

They come from https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html. No checksums are published there, so
damaged files are recognised by their number of rows.
"""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

from coterie.data.examples import Examples
from coterie.data.files.fetch import File
from coterie.data.files.locate import locate
from coterie.data.files.unpack import damaged
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.libsvm import examples
from coterie.errors import UserError
from coterie.settings import settings

_HOME_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary.html"
_FOLDER = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"


class Figures(NamedTuple):
    """The published name and size of a data set."""

    name: str
    features: int
    rows: int
    test_rows: int = 0
    """0 if there is no test file."""


@settings
class Collected(Dataset):
    """Base class of the LIBSVM data sets."""

    usual_partition: ClassVar[str] = "iid"
    usual_model: ClassVar[str] = "logreg"

    path: str | None = None
    """Folder with the files. Default: search $COTERIE_DATA/libsvm and the user's cache, then download."""

    @abstractmethod
    def figures(self) -> Figures:
        """Return the published name and size of the data set."""

    def files(self) -> list[Path]:
        name, _, _, test_rows = self.figures()
        names = (name, f"{name}.t") if test_rows else (name,)
        return locate("libsvm", [File(each, (f"{_FOLDER}/{each}",)) for each in names], _HOME_PAGE, self.path)

    def load(self) -> Examples:
        _, features, rows, test_rows = self.figures()
        paths = self.files()
        loaded = examples(paths, features)
        found = len(loaded.y_train), len(loaded.y_test)
        if test_rows and found != (rows, test_rows):
            raise UserError(
                f"{paths[0]} and {paths[1].name} have {found[0]} and {found[1]} rows, "
                f"expected {rows} and {test_rows}; delete both and get new copies"
            )
        if sum(found) != rows + test_rows:
            raise damaged(paths[0], f"it has {sum(found)} rows, expected {rows}")
        return loaded


@settings
class Mushrooms(Collected):
    """Edible or poisonous mushrooms, 112 binary features: 8124 examples. A quarter of each class is for testing."""

    def figures(self) -> Figures:
        return Figures("mushrooms", 112, 8124)


@settings
class A6A(Collected):
    """Income above 50,000 or not, 123 binary features: 11,220 people for training, 21,341 for testing."""

    def figures(self) -> Figures:
        return Figures("a6a", 123, 11220, 21341)


@settings
class A9A(Collected):
    """Income above 50,000 or not, 123 binary features: 32,561 people for training, 16,281 for testing."""

    def figures(self) -> Figures:
        return Figures("a9a", 123, 32561, 16281)


@settings
class W6A(Collected):
    """Web pages in a category (3 %) or not, 300 binary features: 17,188 for training, 32,561 for testing."""

    def figures(self) -> Figures:
        return Figures("w6a", 300, 17188, 32561)


@settings
class W8A(Collected):
    """Web pages in a category (3 %) or not, 300 binary features: 49,749 for training, 14,951 for testing."""

    def figures(self) -> Figures:
        return Figures("w8a", 300, 49749, 14951)
