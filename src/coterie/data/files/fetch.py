"""Downloads of data files. The cache never contains an incomplete file.

Each file comes from the first mirror that provides the right bytes. An incomplete download is kept as NAME.partial, and
the next attempt continues there, in this process or another. The file gets its name when its checksum is right. A file
without a checksum is always downloaded in one piece, because nothing could tell whether two parts fit together.
"""

import hashlib
import http.client
import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from coterie.data.files.unpack import members
from coterie.errors import UserError

logger = logging.getLogger("coterie")

_TIMEOUT = 30
_ATTEMPTS = 3
_CHUNK = 1 << 16


class File(NamedTuple):
    """One file of a data set, as its authors publish it."""

    name: str
    """Name that the data set looks for, without a .gz or .xz at the end."""
    urls: tuple[str, ...] = ()
    """Mirrors in order of preference. Empty if the file cannot be downloaded."""
    checksum: str | None = None
    """Published checksum of the download, "md5:..." or "sha256:..."."""
    member: str | None = None
    """Name of the file inside the archive, if the download is an archive."""


class FetchError(Exception):
    """A file could not be downloaded from any mirror."""


def fetch(files: Sequence[File], folder: Path) -> None:
    """Download the files into a folder. An archive that holds several of them is downloaded once."""
    downloads: dict[tuple[str, ...], list[File]] = {}
    for file in files:
        downloads.setdefault(file.urls, []).append(file)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        for urls, wanted in downloads.items():
            _fetch(folder, PurePosixPath(urlsplit(urls[0]).path).name, wanted)


def _fetch(folder: Path, name: str, wanted: Sequence[File]) -> None:
    urls = wanted[0].urls
    checksum = wanted[0].checksum
    member = wanted[0].member
    targets = {file.member or name: folder / PurePosixPath(file.member or name).name for file in wanted}
    if all(target.exists() for target in targets.values()):
        return  # another process has downloaded them
    partial = folder / f"{name}.partial"
    _download(urls, checksum, partial)
    if member is None:
        partial.replace(folder / name)
    else:
        _unpack(partial, targets)
        partial.unlink()
    for target in targets.values():
        logger.info("downloaded %s", target)


def _unpack(archive: Path, targets: dict[str, Path]) -> None:
    missing = dict(targets)
    for name, content in members(archive, wanted=targets.__contains__):
        target = missing.pop(name, targets[name])
        half = target.with_name(f"{target.name}.partial")
        half.write_bytes(content)
        half.replace(target)
    if missing:
        raise UserError(f"{archive} does not contain {', '.join(missing)}; delete it and try again")


def _download(urls: Sequence[str], checksum: str | None, partial: Path) -> None:
    problems = []
    for url in urls:
        for _ in range(_ATTEMPTS):
            resumed = checksum is not None and partial.exists()
            if not resumed:
                partial.unlink(missing_ok=True)
            try:
                _receive(url, partial)
            except (http.client.HTTPException, OSError) as error:
                problem = str(getattr(error, "reason", error)) or type(error).__name__
                if isinstance(error, urllib.error.URLError) or not partial.exists():
                    break  # no server or no such file: try the next mirror
                continue  # the connection broke: continue where it stopped
            if _is_right(partial, checksum):
                return
            problem = "wrong checksum"
            partial.unlink()
            if not resumed:
                break
        problems.append(f"{url}: {problem}")
    raise FetchError("; ".join(problems))


def _receive(url: str, partial: Path) -> None:
    """Download the missing part of a file and append it to `partial`."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "coterie"})  # noqa: S310 - not the users' URL
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # either the file is complete or it is wrong: the checksum tells
        raise
    with answer, _bar() as bar:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() and len(length) < 20 else None
        task = bar.add_task(PurePosixPath(urlsplit(url).path).name, total=total, completed=have)
        with partial.open("ab" if have else "wb") as out:
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
                bar.advance(task, len(chunk))
        if total is not None and partial.stat().st_size < total:
            raise http.client.IncompleteRead(b"", total - partial.stat().st_size)


def _is_right(path: Path, checksum: str | None) -> bool:
    if checksum is None:
        return True
    kind, _, expected = checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest() == expected


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    return Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    )
