"""Files that survive a crash of the machine: functions return only when every byte is on the disk."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def write_durably(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """Write the chunks to a file and return their sha256."""
    total = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            total.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return total.hexdigest()


def sync_folder(path: Path) -> None:
    """Make files that were created, renamed or deleted in the folder survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
