"""Federations with exactly the examples that a test asks for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from coterie.data.examples import Examples
from coterie.data.federation import Federation
from coterie.data.ragged import Ragged


def holding(counts: Any, new: Sequence[int] = (), **changes: Any) -> Federation:
    """Return clients with `counts` (I, C) training examples of each class, shuffled, and no other examples."""
    cells = np.asarray(counts)
    owners, y = (np.repeat(part.ravel(), cells.ravel()) for part in np.indices(cells.shape))
    mixed = np.random.default_rng(0).permutation(len(y))
    rows = [np.flatnonzero(owners[mixed] == i) for i in range(len(cells))]
    return federation(y[mixed], rows, changes.pop("labels", tuple(range(cells.shape[1]))), new, **changes)


def federation(
    y: Any, rows: Sequence[Any], labels: tuple[Any, ...], new: Sequence[int] = (), **changes: Any
) -> Federation:
    number = len(rows)
    facts = {
        "ids": tuple(f"c{i}" for i in range(number)),
        "labels": labels,
        "x": torch.zeros(len(y), 1),
        "y": torch.as_tensor(y),
        "splits": {"train": Ragged.of([np.asarray(own) for own in rows]), "test": Ragged.of([np.arange(0)] * number)},
        "classes": Ragged.of([np.arange(len(labels))] * number),
        "is_new": np.isin(np.arange(number), new),
    }
    return Federation(**(facts | changes))


def examples(y_train: Any, y_test: Any, labels: tuple[Any, ...], **changes: Any) -> Examples:
    x_train, x_test = np.zeros((len(y_train), 2)), np.zeros((len(y_test), 2))
    return Examples(x_train, np.asarray(y_train), x_test, np.asarray(y_test), labels, **changes)
