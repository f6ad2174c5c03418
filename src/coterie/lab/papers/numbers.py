"""Version of the numbers: which code measured a stored figure.

A change of the code that changes measured figures, also if only their last digits, adds an entry to `CHANGES`.
`tests/lab/papers/test_numbers.py` fails if results change without a new entry. Run folders, runs.json and the files of
measurements store the version that they were made with. Results from before versions were stored have version 0.
"""

from pathlib import Path
from typing import NamedTuple

from coterie.storage.files import write_atomically


class Change(NamedTuple):
    """A change of the code that changed measured figures."""

    what: str
    """What is different, as the end of a sentence that begins with "since then"."""
    methods: tuple[str, ...] = ()
    """Names of the methods that it concerns. If empty, it concerns all of them."""


CHANGES = (
    Change(
        "standard errors over clients have the divisor n - 1, short batches are not filled up, and dense layers are "
        "trained in closed form, which changes last digits"
    ),
)
VERSION = len(CHANGES)
"""Version of the numbers that this code produces."""
STAMP = "numbers.txt"
"""File in a run folder with the version that the run began with."""


def stamp(folder: Path) -> None:
    """Write the version of this code into the folder of a new run."""
    write_atomically(folder / STAMP, f"{VERSION}\n".encode())


def stamped(folder: Path) -> int:
    """Return the version that a run began with, or 0 if it is from before versions were stored."""
    file = folder / STAMP
    return int(file.read_text()) if file.exists() else 0


def later(version: int, method: str) -> list[Change]:
    """Return the changes after a version that concern a method."""
    return [change for change in CHANGES[version:] if not change.methods or method in change.methods]
