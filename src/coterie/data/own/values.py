"""Conversion of a user's values to arrays. Different values stay different, and nothing is dropped."""

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

LONGEST = 1000
"""Maximum number of characters of a client's name, of a class and of a number that is text."""


class BadValueError(ValueError):
    """A value that cannot be used. The message does not repeat it."""

    def __init__(self, reason: str, row: int | None = None, column: int | None = None) -> None:
        super().__init__(reason)
        self.row, self.column = row, column


def to_array(values: Any) -> NDArray[Any]:
    """Return values as an array. Numbers among strings stay numbers, as objects. Masked values are refused."""
    if isinstance(values, np.ma.MaskedArray):
        hidden = np.argwhere(np.ma.getmaskarray(values))
        if len(hidden):
            first = hidden[0].tolist()
            raise BadValueError("is masked; fill it in or remove the row", *first[:1], *first[1:2])
    array = np.asarray(values)
    if array.dtype.kind == "U" and not isinstance(values, np.ndarray):
        objects = np.asarray(values, dtype=object)
        # NumPy would turn numbers into text here, and would cut off zero characters at the end of text.
        if not all(isinstance(value, str) and "\0" not in value for value in objects.flat):
            return objects
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            return array.astype(np.float64)
    return array


def beyond(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the rows of floating-point numbers that are too large to tell neighbouring whole numbers apart."""
    return np.flatnonzero(~(np.abs(values) < 2.0 ** (np.finfo(values.dtype).nmant + 1)))


def is_missing(value: Any) -> bool:
    """Return whether a value stands for a missing one."""
    # pandas.NA cannot be compared: it is neither true nor false.
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def to_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects as numbers: integers if all of them are, floating-point numbers otherwise."""
    for place, value in enumerate(values.flat):
        if not isinstance(value, Real | np.bool_):
            row, *inner = (int(i) for i in np.unravel_index(place, values.shape))
            reason = "has no value; fill it in or remove the row" if is_missing(value) else "is not a number"
            raise BadValueError(reason, row, *inner[:1])
    kind = np.int64 if all(isinstance(value, Integral | np.bool_) for value in values.flat) else np.float64
    try:
        return values.astype(kind)
    except OverflowError:
        raise BadValueError("has a number that is too large") from None


def to_text(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.object_]:
    """Return objects as text, an array of objects in which equal texts are one.

    Text that reads like a number is refused if that number is there as well.
    """
    texts = np.empty(len(values), dtype=object)
    seen: dict[str, tuple[str, bool]] = {}
    for row, value in enumerate(values):
        if isinstance(value, float) and not abs(value) < 2**53:
            raise BadValueError("has a number that is too large for a floating-point number; use text", row)
        # Whole numbers become floats where a value was once missing.
        whole = isinstance(value, float) and value.is_integer()
        try:
            text = str(int(value)) if whole else str(value)
        except ValueError:
            raise BadValueError("has a number with thousands of digits; use text", row) from None
        texts[row], was_text = seen.setdefault(text, (text, isinstance(value, str)))
        if was_text != isinstance(value, str):
            raise BadValueError("reads the same as a value of another type; use only text or only numbers", row)
        if "\0" in text or len(text) > LONGEST:
            raise BadValueError(f"has a zero character or more than {LONGEST:,} characters; use a shorter text", row)
    return texts
