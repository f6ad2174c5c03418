"""The log of what left a site, one line for each message. Lines are only added.

Each line has a seal that also covers the line before. Seals notice damage, and lines that were changed, lost or
reordered. They do not notice lines that are missing at the end, nor someone who writes the whole file again.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.errors import DiskError, UserError
from coterie.sites.files import timestamp
from coterie.sites.terms import Form
from coterie.storage.files import PRIVATE, naming, sync_folder
from coterie.storage.seal import BrokenSealError, read_line, sealed_line

FILE = "sent.jsonl"
"""Name of the log in the site's folder of state."""
HEADINGS = ("time", "kind", "run", "round", "tensors", "numbers", "bytes", "sha256")
"""Headings of the table."""


class Sent(NamedTuple):
    """A message that left the site."""

    time: str
    """Time in UTC."""
    kind: str
    """What the message is, such as update or score."""
    run: str
    """Digest of the run's terms."""
    round: int
    tensors: tuple[Form, ...]
    numbers: tuple[str, ...]
    """Names of the single numbers in the message."""
    bytes: int
    digest: str
    """sha256 of the whole message."""


class SentLog:
    """The log of a site, open for more lines. Only one process may have it open."""

    def __init__(self, state: Path) -> None:
        self._file = state / FILE
        self._last = ""
        """Digest of the last line."""
        self._end = 0
        """Number of bytes of all whole lines. A killed process may have left a half-written line behind them."""
        for line, digest, _ in _lines(self._file):
            self._last = digest
            self._end += len(line)

    def append(
        self, kind: str, run: str, index: int, tensors: Sequence[Form], numbers: Sequence[str], message: bytes
    ) -> Sent:
        """Add a message of a round, and wait until the line is on the disk.

        Call it each time before a message leaves. Raises DiskError if the line could not be written.
        """
        digest = hashlib.sha256(message).hexdigest()
        sent = Sent(timestamp(), kind, run, index, tuple(sorted(tensors)), tuple(numbers), len(message), digest)
        content, last = sealed_line(sent._asdict(), self._last)
        line = content + b"\n"
        try:
            with naming(self._file), open(self._file, "ab", opener=_private) as file:
                file.truncate(self._end)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            if self._end == 0:
                sync_folder(self._file.parent)
        except OSError as error:
            raise DiskError(f"{self._file} could not be written, so nothing is sent: {error.strerror}") from error
        self._last, self._end = last, self._end + len(line)
        return sent


def read(state: Path) -> list[Sent]:
    """Return all messages that left a site, the oldest first."""
    return [sent for _, _, sent in _lines(state / FILE)]


def table(state: Path) -> list[tuple[str, ...]]:
    """Return the log of a site as rows of text, without HEADINGS."""
    return [
        (
            sent.time,
            sent.kind,
            sent.run[:12],
            f"{sent.round:,}",
            "\n".join(map(str, sent.tensors)),
            "\n".join(sent.numbers),
            f"{sent.bytes:,}",
            sent.digest[:12],
        )
        for sent in read(state)
    ]


def _lines(file: Path) -> Iterator[tuple[bytes, str, Sent]]:
    """Yield each whole line of a log, its digest, and the message. Raises UserError if one was changed."""
    try:
        opened = file.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    last = ""
    with opened:
        for number, line in enumerate(opened, 1):
            if not line.endswith(b"\n") and not _is_whole(line[:-1], last):
                return
            try:
                tree, last = read_line(line.removesuffix(b"\n"), last)
                yield line, last, _sent(tree)
            except (BrokenSealError, ValueError, KeyError, TypeError):
                raise UserError(
                    f"{file} is damaged: line {number} or the one before it was changed. Restore it from a backup, or "
                    "keep it under another name and start a new one"
                ) from None


def _is_whole(line: bytes, last: str) -> bool:
    """Return whether a last line was written whole, so that it is the end of line that was changed."""
    with contextlib.suppress(BrokenSealError):
        return bool(read_line(line, last))
    return False


def _sent(tree: dict[str, Any]) -> Sent:
    tensors = tuple(Form(name, tuple(shape), dtype) for name, shape, dtype in tree["tensors"])
    return Sent(**{**tree, "tensors": tensors, "numbers": tuple(tree["numbers"])})


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)
