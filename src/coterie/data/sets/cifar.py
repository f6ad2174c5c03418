"""File layouts of CIFAR-10 and CIFAR-100: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

The binary layout has records of one or two label bytes and 3072 pixel bytes. The Python layout is a pickled dict of the
same rows. In both, a row of pixels contains 1024 red, then 1024 green, then 1024 blue values.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.files import pickles
from coterie.data.files.idx import Bytes
from coterie.data.files.unpack import content, damaged

_PIXELS = 3 * 32 * 32

Images = NDArray[np.float32]


def read_binary(path: Path, label_byte: int, label_bytes: int, num_classes: int) -> tuple[Images, Index]:
    """Read images and labels from a binary file.

    Each record starts with `label_bytes` label bytes; the label is the one at position `label_byte`.
    """
    inside = content(path, cost=6)  # four for a float, one for itself
    record = label_bytes + _PIXELS
    if not inside or len(inside) % record:
        raise damaged(path, f"its {len(inside)} bytes are not a whole number of records of {record} bytes")
    rows = np.frombuffer(inside, np.uint8).reshape(-1, record)
    return _examples(path, rows[:, label_bytes:], rows[:, label_byte].astype(np.int64), num_classes)


def read_python(path: Path, key: str, num_classes: int) -> tuple[Images, Index]:
    """Read images, and the labels stored under `key`, from a pickled dict."""
    batch = pickles.load(path)
    rows, labels = (batch.get("data"), _integers(batch.get(key))) if isinstance(batch, dict) else (None, None)
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or labels is None:
        raise damaged(path, f"it has no numbers in 'data' and {key!r}")
    if rows.ndim != 2 or rows.shape[1] != _PIXELS or labels.shape != (len(rows),):
        raise damaged(path, f"its images and labels have shapes {rows.shape} and {labels.shape}")
    return _examples(path, rows, labels, num_classes)


def _integers(values: object) -> Index | None:
    """Return labels from a list or an array, or None if they are not integers."""
    if isinstance(values, list) and all(type(value) is int and abs(value) < 2**31 for value in values):
        return np.array(values, dtype=np.int64)
    return values.astype(np.int64) if isinstance(values, np.ndarray) and values.dtype.kind in "iu" else None


def _examples(path: Path, rows: Bytes, labels: Index, num_classes: int) -> tuple[Images, Index]:
    if len(bad := np.flatnonzero((labels < 0) | (labels >= num_classes))):
        raise damaged(path, f"label {labels[bad[0]]} at row {bad[0]} is outside 0..{num_classes - 1}")
    return np.divide(rows.reshape(-1, 3, 32, 32), 255, dtype=np.float32), labels
