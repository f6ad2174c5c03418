"""Files that outlive a crash of the machine: every byte is on the disk before anyone is told so."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def write_durably(path: Path, chunks: Iterable[bytes | memoryview]) -> str:
    """The sha256 of what was written."""
    total = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            total.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return total.hexdigest()


def sync_folder(path: Path) -> None:
    """What was created, renamed or deleted in the folder stays so."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
