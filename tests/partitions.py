"""Examples for partitions to deal."""

import numpy as np

from coterie.core.data import Index
from coterie.data.examples import Examples, Groups


def labelled(y_train: Index, y_test: Index, num_classes: int) -> Examples:
    """Nothing but labels."""
    return Examples(np.zeros((len(y_train), 1)), y_train, np.zeros((len(y_test), 1)), y_test, tuple(range(num_classes)))


def data_for(name: str, clients: int, num_classes: int, spread: int, seed: int) -> Examples:
    """Examples that the scheme can deal: of each class as many training rows as clients at least; as many groups."""
    rng = np.random.default_rng(seed)
    num_classes = 2 if name == "label-ratio" else min(num_classes, clients)
    y_train = rng.permutation(np.repeat(np.arange(num_classes), clients + rng.integers(spread, size=num_classes)))
    y_test = rng.integers(num_classes, size=rng.integers(spread * num_classes))
    of_train = rng.permutation(np.arange(len(y_train)) % clients)
    groups = Groups(of_train, rng.integers(clients, size=len(y_test)), tuple(f"site {i}" for i in range(clients)))
    x_train, x_test = rng.normal(size=(len(y_train), 1, 2)), rng.normal(size=(len(y_test), 1, 2))
    ends = rng.integers(len(y_train) + len(y_test), size=(2, len(y_train)))
    edges = np.concatenate([ends, ends[::-1]], axis=1)
    return Examples(x_train, y_train, x_test, y_test, tuple(range(num_classes)), groups, edges=edges)
