"""NumPy's npz files: zip archives of arrays. Sizes are checked before an array is read."""

import io
import struct
import zipfile
import zlib
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from coterie.data.files import limits
from coterie.errors import UserError

_ERRORS = (
    *(ValueError, OSError, EOFError, KeyError, TypeError, SyntaxError, IndexError, RuntimeError, OverflowError),
    *(NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error, struct.error, TokenError),
)
"""What damaged files raise."""
_LONGEST_HEADER = 10_000


def load(client: str, path: Path, budget: limits.Budget) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name. Errors name the client and the file."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        raise UserError(f"client {client!r}: {path} is not an npz file, or is incomplete")
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = entry.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"it has two arrays {name}")
                with archive.open(entry) as file:
                    arrays[name] = _array(file, entry.file_size, f"client {client!r}: the array {name}", path, budget)
    except UserError:
        raise
    except _ERRORS as error:
        raise UserError(f"client {client!r}: {path} is damaged: {error}") from None
    return arrays


def _array(file: Any, size: int, what: str, path: Path, budget: limits.Budget) -> NDArray[Any]:
    head = io.BytesIO(file.read(min(size, _LONGEST_HEADER + 16)))
    version = npy.read_magic(head)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array has format {version}")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read_header(head, max_header_size=_LONGEST_HEADER)
    if dtype.hasobject:
        raise UserError(f"{what} of {path} holds Python objects, not plain numbers; save it with numbers only")
    if dtype.fields is not None or dtype.subdtype is not None or dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError("an array has no plain type or no valid shape")
    count = prod(shape)
    if count * dtype.itemsize != size - head.tell():
        raise ValueError(f"an array of shape {shape} has {size - head.tell():,} bytes")
    # Twice, because the bytes are read in pieces, and then as floats: once as they are and once with all clients.
    budget.spend(path, count * (2 * dtype.itemsize + 8), what)
    data = head.read() + file.read()
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
