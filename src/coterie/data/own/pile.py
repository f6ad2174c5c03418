"""Many small arrays, one after another. Each of them would take over 100 bytes by itself."""

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index

_WAITING = 4096
"""Number of arrays that are joined at a time."""


class Pile:
    """Arrays that are joined along their first axis while they are added."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()
        """Kinds of the arrays' types, as NumPy's letters."""
        self._joined: list[NDArray[Any]] = []
        self._waiting: list[NDArray[Any]] = []
        self._lengths = array("q", [0])

    def add(self, values: NDArray[Any]) -> None:
        """Add an array."""
        self.kinds.add(values.dtype.kind)
        self._lengths.append(len(values))
        self._waiting.append(values)
        if len(self._waiting) == _WAITING:
            self._joined.append(_joined(self._waiting))
            self._waiting.clear()

    def joined(self) -> NDArray[Any]:
        """Return all values."""
        return _joined([*self._joined, *self._waiting])

    def offsets(self) -> Index:
        """Return the start of each array among all values, followed by the end of the last one."""
        return np.cumsum(self._lengths, dtype=np.int64)


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    # The type and the shape of an array without rows do not count.
    return np.concatenate([values for values in arrays if len(values)] or arrays[:1])
