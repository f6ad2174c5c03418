"""Shakespeare's plays by role, as TensorFlow Federated publishes them: H. B. McMahan et al., "Communication-efficient
learning of deep networks from decentralized data", 2017; S. Caldas et al., "LEAF", arXiv:1812.01097.

There are two HDF5 files. They store the lines of a role as bytes in examples/<PLAY_ROLE>/snippets. The vocabulary of 90
tokens is that of TFF and FedJAX: pad 0, bos 1, eos 2, then 86 characters in the order of their codes, and oov for any
other byte.

Scafflix's experiments omit the targets bos, eos and oov from the accuracy (FedJAX's `accuracy_in_vocab`). Here all
targets count. Of 2,375,383 training targets, 16,068 are eos and 2 are oov. Of 342,108 test targets, 2,356 are eos.
"""

import io
import string
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from coterie.core.data import Index
from coterie.data.examples import Examples, Groups
from coterie.data.files import limits
from coterie.data.files.fetch import File
from coterie.data.files.locate import locate
from coterie.data.files.unpack import content, damaged
from coterie.data.sets.dataset import Dataset
from coterie.errors import UserError
from coterie.settings import Count, settings

_ARCHIVE = "https://storage.googleapis.com/tff-datasets-public/shakespeare.tar.bz2"
_CHECKSUM = "sha256:0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707"
_FILES = tuple(
    File(name, (_ARCHIVE,), _CHECKSUM, member=name) for name in ("shakespeare_train.h5", "shakespeare_test.h5")
)

CHARACTERS = "\n\r !\"#$%&'()*,-./" + string.digits + ":;?@" + string.ascii_uppercase + "[]_" + string.ascii_lowercase
VOCABULARY = ("<pad>", "<bos>", "<eos>", *CHARACTERS, "<oov>")
PAD = 0
BOS = 1
EOS = 2
OOV = len(VOCABULARY) - 1
_COST = 60
"""Bytes of memory for each character, while text is cut into sequences."""
_PIECE = 16 << 20
_TOKENS = np.full(256, OOV)
_TOKENS[list(CHARACTERS.encode())] = np.arange(len(CHARACTERS)) + EOS + 1


@settings
class Shakespeare(Dataset):
    """Next character in the lines of 715 roles, 90 tokens: 16,068 snippets for training and 2,356 for testing."""

    usual_partition: ClassVar[str] = "natural"
    usual_model: ClassVar[str] = "lstm"

    path: str | None = None
    """Folder with shakespeare_train.h5 and shakespeare_test.h5. Default: search $COTERIE_DATA/shakespeare and the
    user's cache, then download."""
    sequence_length: Count = 80
    """Number of characters in an example. The last piece of a snippet is padded, and padding has no target."""
    joined: bool = False
    """Whether to join all snippets of a role before cutting, as in FedJAX. This needs less padding, and makes bos a
    target."""

    def files(self) -> list[Path]:
        return locate("shakespeare", _FILES, _ARCHIVE, self.path)

    def load(self) -> Examples:
        number: dict[str, int] = {}
        train, test = (_read(path, number) for path in self.files())
        x_train, y_train, train_roles = self._cut(train)
        x_test, y_test, test_roles = self._cut(test)
        groups = Groups(train_roles, test_roles, tuple(number))
        return Examples(x_train, y_train, x_test, y_test, VOCABULARY, groups)

    def _cut(self, lines: "_Lines") -> tuple[Index, Index, Index]:
        """Cut the lines into inputs and targets (sequences, T), and return them with the role of each sequence."""
        T = self.sequence_length
        tokens = lines.tokens()
        lengths = lines.lengths + 2  # with bos and eos
        roles = lines.roles
        if self.joined:
            first = np.flatnonzero(np.diff(roles, prepend=-1))
            roles, lengths = roles[first], np.add.reduceat(lengths, first)
        pairs = lengths - 1  # each token with the next one
        rows = -(-pairs // T)
        within = np.arange(pairs.sum()) - np.repeat(_starts(pairs), pairs)
        source = np.repeat(_starts(lengths), pairs) + within
        place = np.repeat(_starts(rows) * T, pairs) + within
        needed = 16 * int(rows.sum()) * T + _COST * int(lengths.sum())
        what = f"{rows.sum():,} sequences of data.sequence_length = {T:,}"
        limits.check(needed, what, *self.files())
        x, y = np.full(rows.sum() * T, PAD), np.full(rows.sum() * T, -1)
        x[place], y[place] = tokens[source], tokens[source + 1]
        return x.reshape(-1, T), y.reshape(-1, T), np.repeat(roles, rows)


class _Lines(NamedTuple):
    """All snippets of a file, grouped by role."""

    text: bytes
    lengths: Index
    roles: Index

    def tokens(self) -> Index:
        """Return the tokens of all snippets, each between bos and eos, one after another."""
        ends = np.cumsum(self.lengths + 2)
        tokens, inside = np.empty(ends[-1], dtype=np.int64), np.ones(ends[-1], dtype=np.bool_)
        for place, token in ((ends - self.lengths - 2, BOS), (ends - 1, EOS)):
            tokens[place], inside[place] = token, False
        tokens[inside] = _TOKENS[np.frombuffer(self.text, dtype=np.uint8)]
        return tokens


def _read(path: Path, number: dict[str, int]) -> _Lines:
    """Read a file. `number` maps roles to numbers; new roles get the next one."""
    try:
        import h5py
    except ImportError:
        raise UserError("reading shakespeare's HDF5 files needs h5py: pip install 'coterie[text]'") from None
    snippets: list[bytes] = []
    roles: list[int] = []
    total = 0
    inside = content(path)
    try:
        with h5py.File(io.BytesIO(inside), "r") as file:
            examples = _own(h5py, file, "examples")
            for role in examples:
                for lines in _pieces(_own(h5py, _own(h5py, examples, role), "snippets"), len(inside), path):
                    snippets += lines
                    roles += [number.setdefault(role, len(number))] * len(lines)
                    total += sum(map(len, lines)) + 2 * len(lines)
                    limits.check(_COST * total, f"{total:,} characters", path)
        text, lengths = b"".join(snippets), np.array([len(snippet) for snippet in snippets])
    except UserError:
        raise
    except _ERRORS as error:
        raise damaged(path, f"it is not an HDF5 file with bytes in examples/<PLAY_ROLE>/snippets ({error})") from error
    if not snippets:
        raise damaged(path, "it has no snippets")
    return _Lines(text, lengths, np.array(roles))


_ERRORS = (OSError, RuntimeError, KeyError, TypeError, AttributeError, ValueError, OverflowError, MemoryError)
"""What damaged files raise."""


def _own(h5py: Any, group: Any, name: str) -> Any:
    """Return a member of a group that is stored in the file itself, not in another file."""
    if not isinstance(group, h5py.Group) or not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise KeyError(name)
    return group[name]


def _pieces(snippets: Any, file_size: int, path: Path) -> Iterator[list[bytes]]:
    """Iterate over the snippets of a role, a few at a time. Their size is checked before they are read."""
    if snippets.external or snippets.is_virtual or snippets.ndim != 1 or snippets.dtype.kind not in "SO":
        raise TypeError("snippets are not a list of bytes")
    chunk = prod(snippets.chunks or (0,))
    limits.check((2 * snippets.dtype.itemsize + 64) * max(snippets.size, chunk), f"{snippets.size:,} snippets", path)
    # Text of any width is as long as the file at most, but the same text can be stored for many snippets.
    at_once = len(snippets) if snippets.dtype.kind == "S" else max(1, _PIECE // file_size)
    for start in range(0, len(snippets), at_once):
        yield snippets[start : start + at_once].tolist()


def _starts(lengths: Index) -> Index:
    return np.cumsum(lengths) - lengths
