"""The two layouts of the CIFAR sets: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

Binary: records of one or two label bytes and 3072 pixel bytes. Python: a pickled dict of such rows. In both a row
of pixels is 1024 red ones, 1024 green ones, 1024 blue ones.
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
    """Images and the label that stands at `label_byte` of `label_bytes`."""
    inside = content(path)
    record = label_bytes + _PIXELS
    if not inside or len(inside) % record:
        raise damaged(path, f"its {len(inside)} bytes are not records of {record}")
    rows = np.frombuffer(inside, np.uint8).reshape(-1, record)
    return _examples(path, rows[:, label_bytes:], rows[:, label_byte].astype(np.int64), num_classes)


def read_python(path: Path, key: str, num_classes: int) -> tuple[Images, Index]:
    """Images and the labels under that key."""
    batch = pickles.load(path)
    try:
        rows, labels = np.asarray(batch["data"], dtype=np.uint8), np.asarray(batch[key], dtype=np.int64)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise damaged(path, f"it has no numbers under 'data' and {key!r}") from error
    if rows.ndim != 2 or rows.shape[1] != _PIXELS or labels.shape != (len(rows),):
        raise damaged(path, f"its images and labels have shapes {rows.shape} and {labels.shape}")
    return _examples(path, rows, labels, num_classes)


def _examples(path: Path, rows: Bytes, labels: Index, num_classes: int) -> tuple[Images, Index]:
    if len(bad := np.flatnonzero((labels < 0) | (labels >= num_classes))):
        raise damaged(path, f"label {labels[bad[0]]} at row {bad[0]} is outside 0..{num_classes - 1}")
    return np.divide(rows.reshape(-1, 3, 32, 32), 255, dtype=np.float32), labels
