"""Clients from a Hugging Face dataset. Only its interface is used: columns by name."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.data.federation import Federation
from coterie.data.files.images import pixels
from coterie.data.own.columns import (
    Column,
    Owners,
    Table,
    check_features,
    deal,
    features_of,
    joined,
    labels_of,
    matrix,
    names_of,
    same_length,
)
from coterie.data.own.parts import SPLITS
from coterie.data.own.pool import pool
from coterie.errors import UserError


def from_datasets(
    dataset: Any, *, client: str, label: str, features: str | Sequence[str], **choices: Any
) -> Federation:
    """Build a federation; see `Federation.from_datasets`."""
    given = dataset if isinstance(dataset, Mapping) else {"train": dataset}
    if not given or set(given) - set(SPLITS):
        raise UserError(f"the dataset has splits {sorted(given)}; rename them to train, test and validation")
    if not isinstance(features, str):
        check_features(features)
    columns = dict.fromkeys([client, label, *([features] if isinstance(features, str) else features)])
    table = joined([_table(split, part, columns) for split, part in given.items()], columns)
    who = names_of(table, client)
    if isinstance(features, str):
        x = _stacked(table, features, who)
    else:
        x = matrix(table, features_of(table, features, {client, label}), who)
    sizes = [len(part[label]) for part in given.values()]
    places = np.array([SPLITS.index(split) for split in given], dtype=np.int8)
    splits = np.repeat(places, sizes) if isinstance(dataset, Mapping) else None
    return pool(deal(who, x, labels_of(table, label, who), table, splits), **choices)


def _table(split: str, dataset: Any, columns: Collection[str]) -> Table:
    there = {name: _objects(dataset[name]) if name in columns else np.empty(0) for name in dataset.column_names}
    same_length("the dataset", {name: column for name, column in there.items() if name in columns})
    return Table("the dataset", there, lambda row: f"{split} row {row}")


def _objects(values: Any) -> Column:
    """Return an array with one object for each row, whatever the type of the rows."""
    column = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        column[row] = value
    return column


def _stacked(table: Table, name: str, who: Owners) -> Column:
    arrays = [pixels(value) if hasattr(value, "convert") else np.asarray(value) for value in table.column(name)]
    for row, array in enumerate(arrays):
        if array.dtype.kind not in "fiub" or array.ndim == 0:
            raise UserError(f"client {who.name(row)!r}: {table.place(row)}: column {name!r} is not an array of numbers")
        if array.shape != arrays[0].shape:
            raise UserError(
                f"client {who.name(row)!r}: {table.place(row)}: column {name!r} has shape {array.shape}, "
                f"but the first row has shape {arrays[0].shape}; all rows must have the same shape"
            )
    return np.stack(arrays)
