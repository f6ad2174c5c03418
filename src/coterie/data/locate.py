"""Where a data set's files are: the `path` setting, or else $COTERIE_DATA/<name>, or else the user's cache."""

import os
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_cache_dir

from coterie.errors import UserError


def locate(name: str, files: Sequence[str], home_page: str, path: str | None) -> list[Path]:
    """The files, each plain or with .gz, from the first folder that has them all."""
    folders = [Path(path).expanduser()] if path is not None else _usual_folders(name)
    found = {folder: [_plain_or_gzipped(folder / file) for file in files] for folder in folders}
    for paths in found.values():
        present = [each for each in paths if each is not None]
        if len(present) == len(files):
            return present

    fullest = max(folders, key=lambda folder: sum(each is not None for each in found[folder]))
    missing = [file for file, each in zip(files, found[fullest], strict=True) if each is None]
    raise UserError(
        f"{name}: missing {', '.join(missing)} (plain or .gz); looked in {', '.join(map(str, folders))}.\n"
        f"Get them from {home_page} and put them in {fullest}, "
        f"or set COTERIE_DATA to the folder that holds {name}/, or --set data.path=DIR"
    )


def _usual_folders(name: str) -> list[Path]:
    shared = os.environ.get("COTERIE_DATA")
    cache = Path(user_cache_dir("coterie"))
    return [root / name for root in ([Path(shared).expanduser()] if shared else []) + [cache]]


def _plain_or_gzipped(path: Path) -> Path | None:
    gzipped = path.with_name(path.name + ".gz")
    return next((each for each in (path, gzipped) if each.is_file()), None)
