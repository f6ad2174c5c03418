"""Checks of a client's own examples. Every error names the client and the row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coterie.data.own.values import BadValueError, beyond, is_missing, to_array, to_numbers, to_text
from coterie.errors import UserError

SPLITS = ("train", "test", "validation")


@dataclass(frozen=True)
class Part:
    """The examples of one split, with the names under which the user knows them."""

    x: ArrayLike
    y: ArrayLike
    x_name: str
    y_name: str
    place: Callable[[int], str] | None = None
    """Describes where an example was read, such as a line of a file or an image. By default, a row of the arrays."""

    def where(self, name: str, row: int) -> str:
        """Describe the position of a row, for error messages."""
        return f"{name} row {row}" if self.place is None else self.place(row)


Parts = Mapping[str, Part]
"""Examples by split: "train", and any other split that the user provides."""


class Checked(NamedTuple):
    """Checked examples of one split."""

    x: NDArray[Any]
    y: NDArray[Any]

    def take(self, rows: NDArray[Any]) -> "Checked":
        """Return the examples in the given rows."""
        return Checked(self.x[rows], self.y[rows])


NOTHING = Checked(np.empty((0, 1), dtype=np.float32), np.empty(0, dtype=np.int64))


def check(
    client: str, split: str, part: Part, own: NDArray[Any] | None, shape: tuple[int, ...] | None, tokens: bool
) -> Checked:
    """Check the examples of one split and return them as arrays.

    `own` is the client's label set, or None for regression. `shape` is the shape every row must have, if it is known.
    """
    x, y = _inputs(client, part, tokens), numbers(client, part) if own is None else labels(client, part)
    if len(x) != len(y):
        raise UserError(
            f"client {client!r}: {len(x)} rows in {part.x_name} but {len(y)} labels in {part.y_name}; "
            "give one label for each row"
        )
    if split == "train" and not len(y):
        raise UserError(f"client {client!r} has no training examples; add some or remove the client")
    if shape is not None and len(x) and x.shape[1:] != shape:
        raise UserError(
            f"client {client!r}: {part.x_name} rows have shape {x.shape[1:]}, but earlier rows have shape {shape}; "
            "all rows must have the same shape"
        )
    if own is None:
        return Checked(x, y)
    bad = np.flatnonzero(~_among(y, own))
    if len(bad):
        raise UserError(
            f"client {client!r}: {part.where(part.y_name, bad[0])} has a label outside the client's label set; "
            "remove the row, or list all of the client's classes in `classes` (only in Python)"
        )
    return Checked(x, y)


def _among(y: NDArray[Any], own: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each label is in a sorted label set."""
    if not len(own) or (y.dtype.kind == "O") != (own.dtype.kind == "O"):
        return np.zeros(len(y), dtype=np.bool_)
    among: NDArray[np.bool_] = own[np.minimum(np.searchsorted(own, y), len(own) - 1)] == y
    return among


def _inputs(client: str, part: Part, tokens: bool) -> NDArray[Any]:
    x = _array(client, part.x_name, part.x, part)
    if x.shape[:1] == (0,):
        return NOTHING.x
    if x.ndim < 2:
        raise UserError(
            f"client {client!r}: {part.x_name} must have one row of features per example, got shape {x.shape}"
        )
    if 0 in x.shape:
        raise UserError(f"client {client!r}: {part.x_name} has no columns, got shape {x.shape}; give some features")
    if x.dtype.kind == "O":
        x = _numbers(client, part.x_name, part.x, part, x)
    if x.dtype.kind not in "fiub":
        raise UserError(f"client {client!r}: {part.x_name} holds {x.dtype}, not numbers; convert it first")
    if x.dtype.kind == "f":
        infinite = np.argwhere(~np.isfinite(x))
        if len(infinite):
            place = _place(part, part.x_name, part.x, *infinite[0][:2].tolist())
            raise UserError(f"client {client!r}: {place} is not finite (NaN or infinity); fix or remove it")
    if tokens:
        bad = np.flatnonzero(((x < 0) | (x >= 2**53) | (x != np.round(x))).any(axis=tuple(range(1, x.ndim))))
        if len(bad):
            place = part.where(part.x_name, bad[0])
            raise UserError(f"client {client!r}: {place} has values that are not tokens (whole numbers from 0 up)")
        return x.astype(np.int64)
    return x.astype(np.float32) if x.dtype != np.float64 else x


def numbers(client: str, part: Part) -> NDArray[Any]:
    """Check and return the targets of a regression."""
    y = _array(client, part.y_name, part.y, part)
    if y.ndim == 1 and y.dtype.kind in "OU":
        if text := [row for row, value in enumerate(y) if isinstance(value, str)]:
            raise UserError(
                f"client {client!r}: {part.where(part.y_name, text[0])} has a label that is text, not a number; "
                "convert it, or omit `regression` to predict classes"
            )
        y = _numbers(client, part.y_name, part.y, part, y)
    if y.ndim != 1 or y.dtype.kind not in "fiub":
        raise UserError(
            f"client {client!r}: {part.y_name} must have one number per row, got {y.dtype} of shape {y.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(y))
    if len(bad):
        place = part.where(part.y_name, bad[0])
        raise UserError(f"client {client!r}: {place} is not finite (NaN or infinity); fix or remove it")
    return y.astype(np.float32) if y.dtype != np.float64 else y


def labels(client: str, part: Part) -> NDArray[Any]:
    """Check and return class labels: integers, or text as objects. Different labels stay different."""
    y = _array(client, part.y_name, part.y, part)
    if y.shape[:1] == (0,):
        return NOTHING.y
    if y.ndim != 1:
        raise UserError(f"client {client!r}: {part.y_name} must have one label per row, got shape {y.shape}")
    if y.dtype.kind == "U":
        return y.astype(object)
    if y.dtype.kind == "O":
        y = _plain_labels(client, part, y)
    if y.dtype.kind not in "fiubO":
        raise UserError(f"client {client!r}: {part.y_name} holds {y.dtype}, not labels; use whole numbers or text")
    if y.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(y) | (y != np.round(y)))
        if len(bad):
            place = part.where(part.y_name, bad[0])
            raise UserError(
                f"client {client!r}: {place} is not a class label (a whole number or text); "
                "to predict numbers instead, set `regression`"
            )
    far = beyond(y) if y.dtype.kind == "f" else np.flatnonzero(y > _LARGEST if y.dtype.kind == "u" else ())
    if len(far):
        raise UserError(
            f"client {client!r}: {part.where(part.y_name, far[0])} has a label that is too large, so different classes "
            "could be merged; use text or smaller integers"
        )
    return y if y.dtype.kind == "O" else y.astype(np.int64)


_LARGEST = np.iinfo(np.int64).max


def _plain_labels(client: str, part: Part, y: NDArray[Any]) -> NDArray[Any]:
    """Return labels that are Python objects as text or as numbers."""
    if any(is_missing(label) for label in y):
        row = next(row for row, label in enumerate(y) if is_missing(label))
        raise UserError(f"client {client!r}: {part.where(part.y_name, row)} has no label; fill it in or remove the row")
    kinds = {isinstance(label, str) for label in y}
    if len(kinds) > 1:
        raise UserError(
            f"client {client!r}: {part.y_name} mixes labels of different types; use only integers or only strings"
        )
    if kinds == {False}:
        return _numbers(client, part.y_name, part.y, part, y)
    try:
        return to_text(y)
    except BadValueError as error:
        raise UserError(f"client {client!r}: {part.where(part.y_name, error.row or 0)} {error}") from None


def _numbers(client: str, name: str, given: ArrayLike, part: Part, values: NDArray[Any]) -> NDArray[Any]:
    try:
        return to_numbers(values)
    except BadValueError as error:
        raise UserError(f"client {client!r}: {_place(part, name, given, error.row, error.column)} {error}") from None


def _array(client: str, name: str, values: ArrayLike, part: Part) -> NDArray[Any]:
    try:
        return to_array(values)
    except BadValueError as error:
        raise UserError(f"client {client!r}: {_place(part, name, values, error.row, error.column)} {error}") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"client {client!r}: {name} cannot be converted to an array: {error}") from None


def _place(part: Part, name: str, given: ArrayLike, row: int | None, column: int | None = None) -> str:
    """Describe the position of a value. A data frame's columns are named."""
    if row is None:
        return name
    columns = getattr(given, "columns", None)
    named = "" if columns is None or column is None else f", column {str(columns[column])!r}"
    return part.where(name, row) + named
