"""Files of MNIST and its drop-in replacements: four IDX files with the same names, 28x28 grey pixels, ten classes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coterie.data.examples import Examples
from coterie.data.files.fetch import File
from coterie.data.files.idx import read_labelled

_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def family(checksums: Sequence[str], *mirrors: str) -> tuple[File, ...]:
    """Return the four files, which every mirror provides gzipped. `checksums` are in the order of `_NAMES`."""
    return tuple(
        File(name, tuple(f"{mirror}/{name}.gz" for mirror in mirrors), checksum)
        for name, checksum in zip(_NAMES, checksums, strict=True)
    )


def load_family(paths: Sequence[Path], labels: tuple[str, ...]) -> Examples:
    """Read the four files. Pixels are scaled to 0..1."""
    train_images, train_labels, test_images, test_labels = paths
    x_train, y_train = read_labelled(train_images, train_labels, (28, 28), len(labels))
    x_test, y_test = read_labelled(test_images, test_labels, (28, 28), len(labels))
    white = np.float32(255)
    return Examples(x_train / white, y_train.astype(np.int64), x_test / white, y_test.astype(np.int64), labels)
