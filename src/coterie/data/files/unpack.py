"""Safe reading of compressed files and archives.

Nothing is written under a name chosen by an archive: `members` returns bytes, and the caller decides where they go. An
archive is refused as a whole if it contains a link, or a name that points outside its folder.
"""

import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from coterie.errors import UserError


class Limits(NamedTuple):
    """Limits on unpacked data. They are larger than any data set here needs, so larger files are refused."""

    size: int = 8 << 30
    """Number of bytes of all members together."""
    files: int = 200_000
    """Number of members of an archive."""


USUAL = Limits()

_PIECE = 1 << 20
_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"


def content(path: Path, limits: Limits = USUAL) -> bytes:
    """Return the bytes of a file, unpacked if it is gzip or xz."""
    kind = ""
    try:
        with path.open("rb") as file:
            # Decide by content, not by name: browsers unzip some downloads without renaming them.
            magic = file.read(len(_XZ))
            kind = "gzip" if magic.startswith(_GZIP) else "xz" if magic == _XZ else ""
            file.seek(0)
            with _unpacked(file, kind) as stream:
                inside = _all(stream, limits.size)
    except EOFError as error:
        raise damaged(path, f"its {kind} stream is cut short") from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise damaged(path, f"its {kind} stream is corrupt ({error})") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    if inside is None:
        raise UserError(f"{path} is refused: it contains more than {limits.size:,} bytes")
    return inside


def members(archive: Path, wanted: Callable[[str], object], limits: Limits = USUAL) -> Iterator[tuple[str, bytes]]:
    """Iterate over the names and bytes of the wanted files in a zip file, or in a tar file (plain, gzip or xz)."""
    try:
        entries = _of_zip(archive) if zipfile.is_zipfile(archive) else _of_tar(archive)
        total = 0
        for count, (name, size, problem, stream) in enumerate(entries, 1):
            total += size
            if count > limits.files or total > limits.size:
                problem = f"it contains more than {limits.files:,} files or {limits.size:,} bytes"
            if problem := problem or _leads_out(name):
                raise UserError(f"{archive} is refused: {problem}")
            if stream is not None and wanted(name):
                yield name, stream.read()
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise damaged(archive, f"it cannot be unpacked ({error})") from error
    except OSError as error:
        raise UserError(f"{archive} cannot be read: {error.strerror or error}") from error


def damaged(path: Path, reason: str) -> UserError:
    """Return the error for a damaged file. It tells the user to replace the file."""
    return UserError(f"{path} is damaged: {reason}; delete it and get a new copy")


def _unpacked(file: BufferedReader, kind: str) -> BufferedIOBase:
    return gzip.GzipFile(fileobj=file) if kind == "gzip" else lzma.LZMAFile(file) if kind == "xz" else file


def _all(stream: BufferedIOBase, limit: int) -> bytes | None:
    """Read a whole stream, or return None if it is longer than `limit`.

    It reads piece by piece, because a single read with a limit would allocate all of the limit first.
    """
    pieces, total = [], 0
    while piece := stream.read(_PIECE):
        pieces.append(piece)
        if (total := total + len(piece)) > limit:
            return None
    return b"".join(pieces)


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
    with tarfile.open(archive) as opened:
        for entry in opened:
            if entry.isfile():
                yield entry.name, entry.size, None, opened.extractfile(entry)
            else:
                problem = None if entry.isdir() else f"{entry.name!r} is a link or a device"
                yield entry.name, 0, problem, None


def _leads_out(name: str) -> str | None:
    windows = PureWindowsPath(name)
    if PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts:
        return f"{name!r} points outside its folder"
    return None
