"""Data sets made from a user's own federation, so that a recipe can use it. Clients become natural groups."""

import numpy as np

from coterie.core.data import Index
from coterie.data.examples import Examples, Groups
from coterie.data.federation import Federation


def examples(federation: Federation) -> Examples:
    """Return the federation as a data set, with one natural group for each client."""
    rows = {split: ragged.values for split, ragged in federation.splits.items()}
    owners = {
        split: np.repeat(np.arange(len(federation.ids)), ragged.lengths())
        for split, ragged in federation.splits.items()
    }
    train = np.concatenate([rows["train"], rows.get("validation", _NONE)])
    groups = Groups(np.concatenate([owners["train"], owners.get("validation", _NONE)]), owners["test"], federation.ids)
    x, y = federation.x.numpy(), federation.y.numpy()
    validation = np.arange(len(rows["train"]), len(train)) if "validation" in rows else None
    return Examples(x[train], y[train], x[rows["test"]], y[rows["test"]], federation.labels, groups, validation)


_NONE: Index = np.empty(0, dtype=np.int64)
