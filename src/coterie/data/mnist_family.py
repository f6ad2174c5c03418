"""What MNIST and its drop-in replacements share: four IDX files of the same names, 28x28 grey pixels, ten classes."""

import numpy as np

from coterie.data.idx import read_labelled
from coterie.data.locate import locate
from coterie.federation import Examples

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def load_family(name: str, home_page: str, path: str | None, labels: tuple[str, ...]) -> Examples:
    """Pixels in 0..1, one row for each image."""
    train_images, train_labels, test_images, test_labels = locate(name, _FILES, home_page, path)
    x_train, y_train = read_labelled(train_images, train_labels, (28, 28), len(labels))
    x_test, y_test = read_labelled(test_images, test_labels, (28, 28), len(labels))
    white = np.float32(255)
    return Examples(x_train / white, y_train.astype(np.int64), x_test / white, y_test.astype(np.int64), labels)
