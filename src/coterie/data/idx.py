"""The IDX format of the MNIST family, plain or gzipped.

Two zero bytes, one byte for the element type, one for the number of dimensions, each dimension as a big-endian
32-bit integer, then the elements. Only unsigned bytes are read here.
"""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.errors import UserError

Bytes = NDArray[np.uint8]

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08


def read(path: Path, ndim: int) -> Bytes:
    """The array in the file, which must have that many dimensions and not one byte more or less than it declares."""
    content = _content(path)
    start = 4 + 4 * ndim
    if len(content) < start:
        raise _damaged(path, f"it ends inside its header, after {len(content)} bytes")
    if content[:2] != b"\0\0":
        raise _damaged(path, f"it is not an IDX file (it starts with bytes {content[:4].hex(' ')})")
    if content[2] != _UNSIGNED_BYTE:
        raise _damaged(path, f"its elements have type 0x{content[2]:02x}, expected 0x08 (unsigned byte)")
    if content[3] != ndim:
        raise _damaged(path, f"it has {content[3]} dimensions, expected {ndim}")
    shape = tuple(np.frombuffer(content, ">u4", count=ndim, offset=4).tolist())
    if len(content) - start != prod(shape):
        raise _damaged(path, f"it declares {prod(shape)} bytes for shape {shape} but holds {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_labelled(images: Path, labels: Path, size: tuple[int, int], num_classes: int) -> tuple[Bytes, Bytes]:
    """Images of that size, and their labels in 0..num_classes-1."""
    x, y = read(images, ndim=3), read(labels, ndim=1)
    if x.shape[1:] != size:
        raise _damaged(images, f"its images are {x.shape[1]}x{x.shape[2]}, expected {size[0]}x{size[1]}")
    if len(x) != len(y):
        raise UserError(
            f"{images} holds {len(x)} images but {labels} holds {len(y)} labels; delete both and get them again"
        )
    if len(bad := np.flatnonzero(y >= num_classes)):
        raise _damaged(labels, f"label {y[bad[0]]} at row {bad[0]} is outside 0..{num_classes - 1}")
    return x, y


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    # By content, not by name: browsers unzip some downloads without renaming them.
    if not content.startswith(_GZIP_MAGIC):
        return content
    try:
        return gzip.decompress(content)
    except EOFError as error:
        raise _damaged(path, "its gzip stream is cut short") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(path, f"its gzip stream is corrupt ({error})") from error


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is damaged: {reason}; delete it and get it again")
