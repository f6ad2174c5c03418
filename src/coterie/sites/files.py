"""Files that several commands change at the same time."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from coterie.errors import UserError
from coterie.storage.files import PRIVATE

_PATIENCE = 10
"""Number of seconds to wait while another command changes a file, which takes milliseconds."""


@contextmanager
def changing(file: Path) -> Iterator[None]:
    """Hold a lock while a file, or a folder, is read, changed and written. Creates the folder around it if needed."""
    lock = FileLock(file.with_name(f".{file.name}.lock"), timeout=_PATIENCE, mode=PRIVATE)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UserError(f"another command is changing {file}; wait for it or stop it") from None
    except OSError as error:
        raise UserError(f"cannot write to the folder {file.parent}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def timestamp() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
