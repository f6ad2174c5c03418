"""Limits on the memory that files and settings may take, which are checked before the memory is used.

A few kilobytes can stand for many gigabytes: of zeros in an archive, of pixels in an image, of columns in a table. By
default, reading may take 0.4 GB plus 40 times the size of the file. All published data sets stay well below this. The
environment variable COTERIE_MAX_GB replaces it.
"""

import math
import os
from pathlib import Path

from coterie.errors import UserError

VARIABLE = "COTERIE_MAX_GB"
_LEAST = 400 << 20
_FACTOR = 40
_IMAGES = 250
"""Factor for images: a JPEG file needs about one bit per pixel, and an array of floats needs 96."""


def allowed(*paths: Path) -> int:
    """Return the number of bytes of memory that reading the files may take."""
    return _given() or _LEAST + _FACTOR * sum(_size(path) for path in paths)


def check(needed: int, what: str, *paths: Path) -> None:
    """Raise a UserError if `what`, read from the files, needs more memory than allowed."""
    if needed > (most := allowed(*paths)):
        raise refused(paths[0], what, needed, most)


def refused(path: Path, what: str, needed: int, most: int) -> UserError:
    """Return the error for a file that needs too much memory."""
    return UserError(
        f"{path} is refused: {what} would take {_shown(needed)} of memory, more than {_shown(most)}; "
        f"if you trust the file and have the memory, set the environment variable {VARIABLE}={math.ceil(needed / 1e9)}"
    )


def check_settings(needed: int, keys: str) -> None:
    """Raise a UserError if settings ask for data that do not fit into the memory of the machine."""
    most = _given() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > most:
        raise UserError(f"these settings need about {_shown(needed)} of memory, more than {_shown(most)}; lower {keys}")


class Budget:
    """Memory that the files of a folder may take together. It grows with every file."""

    def __init__(self, factor: int = _FACTOR) -> None:
        self._factor, self._most, self._used = factor, _given() or _LEAST, 0

    def spend(self, path: Path, needed: int, what: str) -> None:
        """Use memory for a file. Raise a UserError if there is not enough left."""
        check(needed, what, path)
        self._most += 0 if _given() else self._factor * _size(path)
        self._used += needed
        if self._used > self._most:
            raise refused(path, f"{what}, together with the files before it,", self._used, self._most)


def of_images() -> Budget:
    """Return the budget for a folder of images."""
    return Budget(_IMAGES)


def _given() -> int:
    """Return the limit that the user sets, in bytes, or 0."""
    text = os.environ.get(VARIABLE, "")
    try:
        given = float(text or 0)
    except ValueError:
        given = -1
    if not 0 <= given < 1e9 or (text and not given):
        raise UserError(f"the environment variable {VARIABLE} = {text!r} must be a number of gigabytes above 0")
    return int(given * 1e9)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size:,} bytes"
