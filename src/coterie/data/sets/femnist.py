"""FEMNIST: S. Caldas et al., "LEAF: a benchmark for federated settings", arXiv:1812.01097.

LEAF publishes scripts instead of files. Its `preprocess.sh` writes train/*.json and test/*.json. Each file lists
"users" and, for each user, the images "x" as rows of 784 pixels (1 is paper) and the classes "y".
"""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Examples, Groups
from coterie.data.files import limits
from coterie.data.files.locate import look_in
from coterie.data.files.unpack import content, damaged
from coterie.data.sets.dataset import Dataset
from coterie.errors import UserError
from coterie.settings import settings

_LABELS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


@settings
class FEMNIST(Dataset):
    """EMNIST's digits and letters, 28x28, in 62 classes, grouped by writer. The files come from LEAF's scripts.

    The number of writers depends on the options given to these scripts.
    """

    usual_partition: ClassVar[str] = "natural"
    usual_model: ClassVar[str] = "cnn-femnist"

    path: str | None = None
    """Folder with LEAF's train/ and test/. Default: search $COTERIE_DATA/femnist, then the user's cache."""

    def files(self) -> list[Path]:
        folders = look_in("femnist", self.path)
        for folder in folders:
            parts = [sorted((folder / part).glob("*.json*")) for part in ("train", "test")]
            if all(parts):
                return [*parts[0], *parts[1]]
        raise UserError(
            f"femnist: missing train/*.json and test/*.json; looked in {', '.join(map(str, folders))}.\n"
            "Create them with https://github.com/TalwalkarLab/leaf (data/femnist, ./preprocess.sh -s niid --sf 1.0 "
            f"-k 0 -t sample) and put both folders in {folders[0]}, or use --set data.path=DIR"
        )

    def load(self) -> Examples:
        number: dict[str, int] = {}
        paths = self.files()
        train = _read([path for path in paths if path.parent.name == "train"], number)
        test = _read([path for path in paths if path.parent.name == "test"], number)
        groups = Groups(train[2], test[2], tuple(number))
        return Examples(train[0], train[1], test[0], test[1], _LABELS, groups)


def _read(paths: list[Path], number: dict[str, int]) -> tuple[NDArray[np.float32], Index, Index]:
    """Read images, classes and writers. `number` maps writers to numbers; new writers get the next one."""
    xs = []
    ys = []
    writers = []
    for path in paths:
        for user, x, y in _users(path):
            xs.append(x)
            ys.append(y)
            writers.append(np.full(len(y), number.setdefault(user, len(number))))
    return np.concatenate(xs), np.concatenate(ys), np.concatenate(writers)


def _users(path: Path) -> Iterator[tuple[str, NDArray[np.float32], Index]]:
    try:
        tree: Any = json.loads(_text(path), object_pairs_hook=_without_duplicates)
        users = [(user, tree["user_data"][user]) for user in tree["users"]]
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise damaged(path, f"it is not LEAF's JSON with 'users' and 'user_data' ({error})") from error
    if not users:
        raise damaged(path, "it has no users")
    if len({user for user, _ in users}) < len(users):
        raise damaged(path, "it lists a user twice")
    for user, data in users:
        try:
            x, y = np.array(data["x"], dtype=np.float32).reshape(len(data["y"]), 784), np.array(data["y"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise damaged(path, f"user {user!r} does not have 784 pixels in 'x' for each class in 'y'") from error
        if y.ndim != 1 or not (np.isfinite(x).all() and np.isin(y, np.arange(len(_LABELS))).all()):
            raise damaged(path, f"user {user!r} has a pixel that is not a number, or a class outside 0..61")
        yield user, x.reshape(-1, 28, 28), y.astype(np.int64)


def _text(path: Path) -> str:
    """Return the text of a file, after a check that its numbers and lists fit into memory."""
    raw = content(path)
    numbers, lists, dicts = raw.count(b","), raw.count(b"["), raw.count(b"{") + raw.count(b":")
    needed = len(raw) * (1 if raw.isascii() else 4) + 33 * numbers + 72 * lists + 110 * dicts + 25 * raw.count(b'"')
    limits.check(needed, f"a file of {numbers:,} numbers", path)
    return raw.decode()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name appears twice")
    return found
