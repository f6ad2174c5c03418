"""Search for the files of a data set.

If the setting `path` is given, only that folder is searched. Otherwise the files are looked for in $COTERIE_DATA/<name>
and in the user's cache, and then downloaded. Files in the user's folders are used as they are. Only downloads are
compared with the published checksums.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_cache_dir

from coterie.data.files.fetch import FetchError, File, fetch
from coterie.errors import UserError
from coterie.settings import user_path

_SUFFIXES = ("", ".gz", ".xz")


def locate(name: str, files: Sequence[File], home_page: str, path: str | None, instead: str = "") -> list[Path]:
    """Return the paths of the files in the first folder that has all of them. Download them if necessary.

    Each file may be plain, .gz or .xz. `instead` is a setting that needs fewer files; the error suggests it.
    """
    if found := find(name, files, path):
        return found
    folders = look_in(name, path)
    problem = ""
    if path is None and all(file.urls for file in files):
        cache = folders[-1]
        try:
            _download(files, cache)
        except FetchError as error:
            problem = f"; the download failed: {error}"
        else:
            return [_there(cache / file.name) or cache / file.name for file in files]

    fullest = max(folders, key=lambda folder: sum(_there(folder / file.name) is not None for file in files))
    missing = [file.name for file in files if _there(fullest / file.name) is None]
    raise UserError(
        f"{name}: missing {', '.join(missing)} (plain, .gz or .xz); "
        f"looked in {', '.join(map(str, folders))}{problem}.\n"
        f"Download them from {home_page} and put them in {fullest}, "
        f"set COTERIE_DATA to the folder that contains {name}/, or use --set data.path=DIR"
        + (f". To use only a part of the data: --set {instead}" if instead else "")
    )


def find(name: str, files: Sequence[File], path: str | None) -> list[Path] | None:
    """Return the paths of the files without downloading, or None if no folder has all of them."""
    for folder in look_in(name, path):
        present = [there for file in files if (there := _there(folder / file.name))]
        if len(present) == len(files):
            return present
    return None


def look_in(name: str, path: str | None) -> list[Path]:
    """Return the folders to search for the data set, in order of preference."""
    if path is not None:
        return [user_path(path)]
    shared = os.environ.get("COTERIE_DATA")
    cache = Path(user_cache_dir("coterie"))
    return [root / name for root in ([user_path(shared)] if shared else []) + [cache]]


def _download(files: Sequence[File], cache: Path) -> None:
    if os.environ.get("COTERIE_OFFLINE"):
        raise FetchError("COTERIE_OFFLINE is set")
    try:
        fetch([file for file in files if _there(cache / file.name) is None], cache)
    except OSError as error:
        raise FetchError(f"{cache}: {error.strerror or error}") from error


def _there(path: Path) -> Path | None:
    names = (path.with_name(path.name + suffix) for suffix in _SUFFIXES)
    return next((each for each in names if each.is_file()), None)
