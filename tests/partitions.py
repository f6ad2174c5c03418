"""Examples that are nothing but their labels."""

import numpy as np

from coterie.federation import Examples, Index


def labelled(y_train: Index, y_test: Index, num_classes: int) -> Examples:
    return Examples(np.zeros((len(y_train), 1)), y_train, np.zeros((len(y_test), 1)), y_test, tuple(range(num_classes)))
