"""The IDX format of the MNIST family, plain or compressed.

A file starts with two zero bytes, one byte for the element type and one for the number of dimensions. Each dimension
follows as a big-endian 32-bit integer, then the elements. Only unsigned bytes and 32-bit integers are supported here.
"""

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.files.unpack import content, damaged
from coterie.errors import UserError

Bytes = NDArray[np.uint8]

_UNSIGNED_BYTE, _INT32 = 0x08, 0x0C
_MEANING = {_UNSIGNED_BYTE: "unsigned byte", _INT32: "32-bit integer"}


def read(path: Path, ndim: int) -> Bytes:
    """Read a file of bytes with `ndim` dimensions. Its length must match the declared shape exactly."""
    return _elements(path, ndim, _UNSIGNED_BYTE, np.dtype(np.uint8)).astype(np.uint8, copy=False)


def read_integers(path: Path, ndim: int) -> Index:
    """Read a file of 32-bit integers with `ndim` dimensions."""
    return _elements(path, ndim, _INT32, np.dtype(">i4")).astype(np.int64)


def read_labelled(images: Path, labels: Path, size: tuple[int, int], num_classes: int) -> tuple[Bytes, Bytes]:
    """Read images of the given size and their labels in 0..num_classes-1."""
    x, y = read(images, ndim=3), read(labels, ndim=1)
    if x.shape[1:] != size:
        raise damaged(images, f"its images are {x.shape[1]}x{x.shape[2]}, expected {size[0]}x{size[1]}")
    if len(x) != len(y):
        raise UserError(
            f"{images} has {len(x)} images but {labels} has {len(y)} labels; delete both and get new copies"
        )
    if len(bad := np.flatnonzero(y >= num_classes)):
        raise damaged(labels, f"label {y[bad[0]]} at row {bad[0]} is outside 0..{num_classes - 1}")
    return x, y


def _elements(path: Path, ndim: int, kind: int, dtype: "np.dtype[np.generic]") -> NDArray[np.generic]:
    inside = content(path, cost=6)  # four for a float, one for itself
    start = 4 + 4 * ndim
    if len(inside) < start:
        raise damaged(path, f"it ends inside its header, after {len(inside)} bytes")
    if inside[:2] != b"\0\0":
        raise damaged(path, f"it is not an IDX file (it starts with bytes {inside[:4].hex(' ')})")
    if inside[2] != kind:
        raise damaged(path, f"its elements have type 0x{inside[2]:02x}, expected 0x{kind:02x} ({_MEANING[kind]})")
    if inside[3] != ndim:
        raise damaged(path, f"it has {inside[3]} dimensions, expected {ndim}")
    shape = tuple(np.frombuffer(inside, ">u4", count=ndim, offset=4).tolist())
    declared = prod(shape) * dtype.itemsize
    if len(inside) - start != declared:
        raise damaged(path, f"it declares {declared} bytes for shape {shape} but contains {len(inside) - start}")
    return np.frombuffer(inside, dtype, offset=start).reshape(shape)
