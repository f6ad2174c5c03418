"""Files that survive a crash of the machine: functions return only when every byte is on the disk."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import UserError

if TYPE_CHECKING:  # commands that handle no tensors start without PyTorch
    from coterie.core.tree import Tree

PRIVATE, PUBLIC = 0o600, 0o666
"""Permissions of files: of those with personal states, and of all others. The user's umask may take more away."""


def write_durably(path: Path, chunks: Iterable[bytes | memoryview], mode: int = PUBLIC) -> str:
    """Write the chunks to a file with these permissions and return their sha256."""
    total = hashlib.sha256()
    with naming(path), open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        for chunk in chunks:
            total.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return total.hexdigest()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an OSError that does not. Failed writes do not."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def make_private(folder: Path) -> None:
    """Create a folder, or take an existing one, that only its owner can read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def delete_file(path: Path) -> None:
    """Delete a file of a run. Raises UserError if it is a folder, which a run has not written."""
    if path.is_dir() and not path.is_symlink():
        raise UserError(f"{path} is a folder, where a run has only files; remove it")
    path.unlink()


def delete_folder(path: Path) -> None:
    """Delete a folder of a run. Raises UserError if it is a file, which a run has not written."""
    if not path.is_dir():
        raise UserError(f"{path} is a file, where a run has only folders; remove it")
    shutil.rmtree(path)


def sync_folder(path: Path) -> None:
    """Make files that were created, renamed or deleted in the folder survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes, mode: int = PUBLIC) -> str:
    """Write a file so that it is either as it was, or whole and new. Returns its sha256."""
    partial = path.with_name(f".{path.name}.partial")
    sha256 = write_durably(partial, [content], mode)
    partial.replace(path)
    sync_folder(path.parent)
    return sha256


_RESERVED = "__metadata__"
"""The one name that the safetensors format keeps for itself."""


def packed(tree: "Tree") -> "Tree":
    """Return contiguous copies on the CPU, under names that a safetensors file can have."""
    return {
        f".{name}" if name == _RESERVED else name: value.detach().cpu().contiguous().clone()
        for name, value in tree.items()
    }


def unpacked(tree: "Tree") -> "Tree":
    """Return a tree that was `packed` with its own names."""
    return {_RESERVED if name == f".{_RESERVED}" else name: value for name, value in tree.items()}
