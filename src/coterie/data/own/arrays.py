"""Clients from arrays in memory or in npz files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from coterie.data.federation import Federation
from coterie.data.files import limits, npz
from coterie.data.own.parts import SPLITS, Part, Parts
from coterie.data.own.pool import pool
from coterie.errors import UserError

_ALIASES = {"x": "x_train", "y": "y_train", "x_val": "x_validation", "y_val": "y_validation"}


def from_arrays(clients: Mapping[str, Sequence[ArrayLike]], **choices: Any) -> Federation:
    """Build a federation; see `Federation.from_arrays`."""
    if not isinstance(clients, Mapping):
        raise UserError(f"expected a dict of arrays by client, {{client: (x, y), ...}}, not {type(clients).__name__}")
    parts: dict[str, Parts] = {}
    for client, arrays in clients.items():
        if str(client) in parts:
            raise UserError(f"two clients are called {str(client)!r}; names must be different, also as text")
        parts[str(client)] = _parts(str(client), arrays)
    return pool(parts, **choices)


def _parts(client: str, arrays: Sequence[ArrayLike]) -> Parts:
    if not isinstance(arrays, Sequence) or len(arrays) not in (2, 4, 6):
        raise UserError(
            f"client {client!r}: expected two arrays (x, y), four arrays (x_train, y_train, x_test, y_test), or "
            "six arrays (these four, x_val and y_val)"
        )
    if len(arrays) == 2:
        return {"train": Part(arrays[0], arrays[1], "x", "y")}
    pairs = zip(SPLITS, arrays[::2], arrays[1::2], strict=False)
    return {split: Part(x, y, f"x_{split}", f"y_{split}") for split, x, y in pairs}


def read_npz(client: str, path: Path, budget: limits.Budget) -> Parts:
    """Read arrays x and y, or x_train, y_train and so on. Pickled objects are refused, because they could run code."""
    arrays: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, values in npz.load(client, path, budget).items():
        full = _ALIASES.get(name, name)
        if full in arrays:
            raise UserError(f"client {client!r}: {path} has both {name} and another {full}; remove one")
        arrays[full] = values
        names[full] = f"{path}, {name}"
    if {"x_train", "y_train"} - set(arrays):
        raise UserError(
            f"client {client!r}: {path} needs arrays x and y, or x_train and y_train; found: {_listed(names)}"
        )
    parts = {}
    for split in SPLITS:
        x, y = f"x_{split}", f"y_{split}"
        if (x in arrays) != (y in arrays):
            raise UserError(f"client {client!r}: {path} has only one of {x} and {y}; add the other")
        if x in arrays:
            parts[split] = Part(arrays[x], arrays[y], names[x], names[y])
    return parts


def _listed(names: Mapping[str, str]) -> str:
    return ", ".join(name.rpartition(", ")[2] for name in names.values()) or "nothing"
