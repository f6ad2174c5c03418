"""Safe reading of compressed files and archives.

Nothing is written under a name chosen by an archive: `members` returns bytes, and the caller decides where they go. An
archive is refused as a whole if it contains a link, or a name that points outside its folder.
"""

import bz2
import gzip
import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from coterie.data.files import limits
from coterie.errors import UserError

_MOST_FILES = 200_000
"""Maximum number of members of an archive."""
_LONGEST_HEADER = 1 << 20
"""Maximum number of bytes that tarfile may read at once. It does so for headers, which are much smaller."""
_PIECE = 1 << 20
_MAGIC = {"gzip": b"\x1f\x8b", "xz": b"\xfd7zXZ\x00", "bzip2": b"BZh"}
_ERRORS = (
    *(tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, struct.error, KeyError, IndexError),
)
"""What damaged archives raise."""


def content(path: Path, cost: int = 2) -> bytes:
    """Return the bytes of a file, unpacked if it is gzip or xz.

    `cost` is the number of bytes of memory that the caller needs for each byte of the content.
    """
    kind = ""
    try:
        with path.open("rb") as file:
            kind = _kind(file, ("gzip", "xz"))
            with _unpacked(file, kind) as stream:
                return _all(stream, path, cost)
    except EOFError as error:
        raise damaged(path, f"its {kind} stream is cut short") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise damaged(path, f"its {kind} stream is corrupt ({error})") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except MemoryError:
        raise UserError(f"{path} does not fit into memory") from None
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{str(path)!r} is not the path of a file: {error}") from None


def members(archive: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Iterate over the names and bytes of the wanted files in a zip file, or in a tar file (plain or compressed)."""
    try:
        entries = _of_zip(archive) if zipfile.is_zipfile(archive) else _of_tar(archive)
        total = 0
        for count, (name, size, problem, stream) in enumerate(entries, 1):
            total += size
            if count > _MOST_FILES:
                problem = f"it contains more than {_MOST_FILES:,} files"
            if problem := problem or _leads_out(name):
                raise UserError(f"{archive} is refused: {problem}")
            limits.check(2 * total, "its content", archive)
            if stream is not None and wanted(name):
                yield name, _all(stream, archive, 2)
    except _ERRORS as error:
        if isinstance(error, UserError):
            raise
        raise damaged(archive, f"it cannot be unpacked ({error})") from error
    except OSError as error:
        raise UserError(f"{archive} cannot be read: {error.strerror or error}") from error


def damaged(path: Path, reason: str) -> UserError:
    """Return the error for a damaged file. It tells the user to replace the file."""
    return UserError(f"{path} is damaged: {reason}; delete it and get a new copy")


def _kind(file: BufferedReader, kinds: tuple[str, ...]) -> str:
    """Return how a file is compressed. Decide by content: browsers unzip some downloads without renaming them."""
    start = file.read(8)
    file.seek(0)
    return next((kind for kind in kinds if start.startswith(_MAGIC[kind])), "")


def _unpacked(file: BufferedReader, kind: str) -> BufferedIOBase:
    if kind == "gzip":
        return gzip.GzipFile(fileobj=file)
    return lzma.LZMAFile(file) if kind == "xz" else bz2.BZ2File(file) if kind == "bzip2" else file


def _all(stream: IO[bytes] | BufferedIOBase, path: Path, cost: int) -> bytes:
    """Read a whole stream, piece by piece, because a single read would first allocate all of it."""
    inside, most = io.BytesIO(), limits.allowed(path)
    while piece := stream.read(_PIECE):
        inside.write(piece)
        if cost * inside.tell() > most:
            raise limits.refused(path, f"more than {inside.tell():,} bytes of content", cost * inside.tell(), most)
    return inside.getvalue()


class _Bounded:
    """An unpacked tar file that refuses to be read further than the limit, or to return a large header."""

    def __init__(self, stream: BufferedIOBase, archive: Path) -> None:
        self._stream, self._archive, self._most = stream, archive, limits.allowed(archive)

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes."""
        if not 0 <= size <= _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        if self.tell() + size > self._most:
            raise limits.refused(self._archive, "its content", self.tell() + size, self._most)
        return self._stream.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        """Move to a place."""
        if place > self._most:
            raise limits.refused(self._archive, "its content", place, self._most)
        return self._stream.seek(place, whence)

    def tell(self) -> int:
        """Return the place."""
        return self._stream.tell()


_Entry = tuple[str, int, str | None, IO[bytes] | None]
"""Name, size, reason to refuse it (or None), and a stream of its bytes (None for folders)."""


def _of_zip(archive: Path) -> Iterator[_Entry]:
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            name, size = entry.filename, entry.file_size  # zipfile never reads more than this
            if stat.S_ISLNK(entry.external_attr >> 16):
                yield name, size, f"{name!r} is a link", None
            elif entry.flag_bits & 1:
                yield name, size, f"{name!r} is encrypted", None
            elif entry.is_dir():
                yield name, size, None, None
            else:
                with opened.open(entry) as stream:
                    yield name, size, None, stream


def _of_tar(archive: Path) -> Iterator[_Entry]:
    with archive.open("rb") as file, _unpacked(file, _kind(file, tuple(_MAGIC))) as stream:
        bounded: Any = _Bounded(stream, archive)
        with tarfile.open(fileobj=bounded, mode="r:") as opened:
            while (entry := opened.next()) is not None:
                opened.members.clear()  # type: ignore[attr-defined] # their names may take much memory
                if entry.issparse() or entry.size < 0 or not (entry.isfile() or entry.isdir()):
                    yield entry.name, 0, f"{entry.name!r} is a link, a device or a file with holes", None
                else:
                    yield entry.name, entry.size, None, opened.extractfile(entry) if entry.isfile() else None


def _leads_out(name: str) -> str | None:
    windows = PureWindowsPath(name)
    if PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts:
        return f"{name!r} points outside its folder"
    return None
