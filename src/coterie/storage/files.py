"""Files that survive a crash of the machine: functions return only when every byte is on the disk."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from coterie.core.tree import Tree


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


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is either as it was, or whole and new."""
    partial = path.with_name(f".{path.name}.partial")
    write_durably(partial, [content])
    partial.replace(path)
    sync_folder(path.parent)


_RESERVED = "__metadata__"
"""The one name that the safetensors format keeps for itself."""


def packed(tree: Tree) -> Tree:
    """Return contiguous copies on the CPU, under names that a safetensors file can have."""
    return {
        f".{name}" if name == _RESERVED else name: value.detach().cpu().contiguous().clone()
        for name, value in tree.items()
    }


def unpacked(tree: Tree) -> Tree:
    """Return a tree that was `packed` with its own names."""
    return {_RESERVED if name == f".{_RESERVED}" else name: value for name, value in tree.items()}
