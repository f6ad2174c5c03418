"""Lists of integers, one for each client, stored in two arrays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index


class Ragged(NamedTuple):
    """Rows of integers of different lengths, stored in one array."""

    values: Index
    """All rows, one after another."""
    offsets: Index
    """Start of each row in `values`, followed by the end of the last row."""

    @classmethod
    def of(cls, rows: Sequence[Index]) -> "Ragged":
        """Store a sequence of rows."""
        values = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        return cls(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))

    @classmethod
    def by_owner(cls, owner: Index, num_rows: int) -> "Ragged":
        """Return rows where row i lists, in order, the positions at which `owner` is i. A -1 belongs to no row."""
        order = np.argsort(owner, kind="stable")
        return cls(order, np.searchsorted(owner[order], np.arange(num_rows + 1)).astype(np.int64))

    def row(self, i: int) -> Index:
        """Return row i."""
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def lengths(self) -> Index:
        """Return the length of each row."""
        return np.diff(self.offsets)

    def padded(self, rows: Index) -> tuple[Index, NDArray[np.bool_]]:
        """Return the given rows as one matrix, and a mask of its valid entries. Padding is `values[0]`."""
        start = self.offsets[rows]
        lengths = self.offsets[rows + 1] - start
        place = np.arange(lengths.max())
        mask = place < lengths[:, None]
        return self.values[np.where(mask, start[:, None] + place, 0)], mask
