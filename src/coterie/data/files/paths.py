"""Paths that users write."""

from pathlib import Path

from coterie.errors import UserError


def user_path(text: str | Path) -> Path:
    """Return a path with ~ replaced by the home folder. Raise a UserError if there can be no such path."""
    if "\0" in str(text):
        raise UserError(f"the path {str(text)!r} contains a zero character; remove it")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"the path {str(text)!r} names the home folder of a user who does not exist") from None
