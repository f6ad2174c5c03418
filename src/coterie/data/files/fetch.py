"""Downloads: each file from the first of its mirrors that gives the right bytes, and never half a file in the cache.

What has come so far lies in NAME.partial, where the next attempt goes on, in this process or another; it takes its
name only when its checksum is right. Without a checksum nothing could tell whether two parts fit, so such a file
always comes in one piece.
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
    """As the data set asks for it, without the .gz or .xz that may follow."""
    urls: tuple[str, ...] = ()
    """Mirrors, in the order of preference; none where it cannot be downloaded."""
    checksum: str | None = None
    """Of what the urls give: "md5:..." or "sha256:...", as published."""
    member: str | None = None
    """Where the urls give an archive: its name in there."""


class FetchError(Exception):
    """No mirror gave the file."""


def fetch(files: Sequence[File], folder: Path) -> None:
    """Into the folder, each file that can be had; the members of one archive together."""
    downloads: dict[tuple[str, ...], list[File]] = {}
    for file in files:
        downloads.setdefault(file.urls, []).append(file)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        for urls, wanted in downloads.items():
            _fetch(folder, PurePosixPath(urlsplit(urls[0]).path).name, wanted)


def _fetch(folder: Path, name: str, wanted: Sequence[File]) -> None:
    urls, checksum, member = wanted[0].urls, wanted[0].checksum, wanted[0].member
    targets = {file.member or name: folder / PurePosixPath(file.member or name).name for file in wanted}
    if all(target.exists() for target in targets.values()):
        return  # another process was faster
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
        raise UserError(f"{archive} does not hold {', '.join(missing)}; delete it and try again")


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
                    break  # nobody there, or not there: the next mirror
                continue  # cut off: go on from where it was
            if _is_right(partial, checksum):
                return
            problem = "wrong checksum"
            partial.unlink()
            if not resumed:
                break
        problems.append(f"{url}: {problem}")
    raise FetchError("; ".join(problems))


def _receive(url: str, partial: Path) -> None:
    """Adds to the partial file what it lacks."""
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "coterie"})  # noqa: S310 - ours, none from outside
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is here already, or something else: the checksum tells
        raise
    with answer, _bar() as bar:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
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
