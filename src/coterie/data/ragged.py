"""Lists of integers, one for each client, in two arrays."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index


class Ragged(NamedTuple):
    """Rows of integers of different length, in one array."""

    values: Index
    offsets: Index

    @classmethod
    def of(cls, rows: Sequence[Index]) -> "Ragged":
        values = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        return cls(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))

    @classmethod
    def by_owner(cls, owner: Index, num_rows: int) -> "Ragged":
        """Row i has the places where `owner` is i, in order; places of -1 are in no row."""
        order = np.argsort(owner, kind="stable")
        return cls(order, np.searchsorted(owner[order], np.arange(num_rows + 1)).astype(np.int64))

    def row(self, i: int) -> Index:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def lengths(self) -> Index:
        return np.diff(self.offsets)

    def padded(self, rows: Index) -> tuple[Index, NDArray[np.bool_]]:
        """Those rows as one matrix, and where it holds values; padding is the first value of all."""
        start, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        place = np.arange(lengths.max())
        mask = place < lengths[:, None]
        return self.values[np.where(mask, start[:, None] + place, 0)], mask
