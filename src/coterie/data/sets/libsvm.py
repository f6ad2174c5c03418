"""LIBSVM text format: C.-C. Chang, C.-J. Lin, "LIBSVM: a library for support vector machines", 2011.

Each line is one example: its label, then index:value for each feature that is not zero. Indices start at 1.
"""

import io
from array import array
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.data.examples import Examples
from coterie.data.files import limits
from coterie.data.files.unpack import content
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.split import split
from coterie.errors import UserError
from coterie.settings import Count, settings, user_path


class Rows(NamedTuple):
    """The sparse content of a file. Value i belongs to feature `feature[i]` of example `row[i]`."""

    labels: NDArray[np.float64]
    row: NDArray[np.int64]
    feature: NDArray[np.int64]
    value: NDArray[np.float32]

    def width(self) -> int:
        """Return the number of features, which is the largest index in the file."""
        return int(self.feature.max(initial=-1)) + 1

    def dense(self, num_features: int) -> NDArray[np.float32]:
        """Return the examples as a dense matrix."""
        x = np.zeros((len(self.labels), num_features), dtype=np.float32)
        x[self.row, self.feature] = self.value
        return x


@settings
class LibSVM(Dataset):
    """Your own file in LIBSVM's text format. Without a test file, a quarter of each class is used for testing."""

    usual_partition: ClassVar[str] = "iid"
    usual_model: ClassVar[str] = "logreg"

    path: str | None = None
    """Folder with the files. Required."""
    file: str | None = None
    """Name of the training file. Required."""
    test_file: str | None = None
    """Name of the test file. Default: none; a quarter of each class is used for testing."""
    features: Count | None = None
    """Number of features. Default: the largest index in the files. Set it if the last features may all be zero."""

    def files(self) -> list[Path]:
        if self.path is None or self.file is None:
            raise UserError("libsvm needs a file: --set data.path=DIR --set data.file=NAME")
        folder = user_path(self.path)
        return [folder / name for name in (self.file, self.test_file) if name is not None]

    def load(self) -> Examples:
        return examples(self.files(), self.features)


def examples(paths: list[Path], num_features: int | None = None) -> Examples:
    """Read one file, or a training file and a test file. The labels must have two or more values, numbered in order."""
    parts = [read(path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if num_features is not None and part.width() > num_features:
            raise UserError(f"{path} has a feature {part.width()}, but there should be only {num_features} features")
    width = num_features or max(part.width() for part in parts)
    rows = sum(len(part.labels) for part in parts)
    # With the sparse content, and with the copies that a split makes.
    needed = 8 * width * rows + sum(24 * len(part.value) for part in parts)
    limits.check(needed, f"a dense matrix of {rows:,} rows and {width:,} columns", *paths)
    xs = [part.dense(width) for part in parts]
    values = np.unique(np.concatenate([part.labels for part in parts]))
    if len(values) < 2 or (values != np.round(values)).any():
        shown = ", ".join(f"{value:g}" for value in values[:5])
        raise UserError(f"{paths[0]}: labels must be whole numbers with two or more different values, found: {shown}")
    ys = [np.searchsorted(values, part.labels) for part in parts]
    labels = tuple(int(value) for value in values)
    if len(parts) == 2:
        return Examples(xs[0], ys[0], xs[1], ys[1], labels)
    train, test = split(ys[0], share=0.25)
    return Examples(xs[0][train], ys[0][train], xs[0][test], ys[0][test], labels)


def read(path: Path) -> Rows:
    """Read a file in LIBSVM's text format."""
    labels, values = array("d"), array("d")
    rows, features = array("q"), array("q")
    for number, line in enumerate(io.BytesIO(content(path, cost=8)), 1):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        if any(b"_" in word for word in words):  # Python would read 1_0 as 10
            raise _bad(path, number, "a number contains an underscore")
        try:
            labels.append(float(words[0]))
            for word in words[1:]:
                index, _, value = word.partition(b":")
                features.append(int(index) - 1)
                values.append(float(value))
        except (ValueError, OverflowError):
            raise _bad(path, number, f"expected 'label index:value ...', found {line[:60]!r}") from None
        if abs(labels[-1]) >= 2**53:
            raise _bad(path, number, "the label is too large, so different labels could be merged")
        rows.extend([len(labels) - 1] * (len(words) - 1))
        mine = features[len(features) - len(words) + 1 :]
        if min(mine, default=0) < 0 or len(set(mine)) < len(mine):
            raise _bad(path, number, "an index is below 1 or appears twice")
    if not labels:
        raise UserError(f"{path} has no rows")
    found = Rows(np.array(labels), np.array(rows), np.array(features), _floats(values))
    if not (np.isfinite(found.labels).all() and np.isfinite(found.value).all()):
        raise UserError(f"{path} contains NaN, infinity, or a number too large for float32; fix or remove those rows")
    return found


def _floats(values: "array[float]") -> NDArray[Any]:
    with np.errstate(over="ignore"):
        return np.array(values).astype(np.float32)


def _bad(path: Path, number: int, reason: str) -> UserError:
    return UserError(f"{path} line {number}: {reason}")
