"""Clients from the columns of a table: client, label, split and features."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.own.parts import SPLITS, Part, Parts
from coterie.data.own.values import BadValueError, beyond, is_missing, to_text
from coterie.errors import UserError
from coterie.registry import nearest

Column = NDArray[Any]
_NO_NUMBER = {"", "na", "n/a", "nan", "none", "null"}
_NO_NAME = {"", "nan"}
"""Fewer entries than `_NO_NUMBER`, because a class may be called none."""


@dataclass(frozen=True)
class Table:
    """A table with named columns."""

    name: str
    columns: Mapping[str, Column]
    place: Callable[[int], str]
    """Describes the position of a row, for error messages."""
    is_text: bool = False
    """Whether numbers are still text, as in a CSV file."""

    def column(self, name: str) -> Column:
        """Return a column. Raise a UserError that lists the columns if there is none of that name."""
        if not isinstance(name, Hashable) or name not in self.columns:
            there = ", ".join([*self.columns][:20]) + (", ..." if len(self.columns) > 20 else "")
            raise UserError(f"{self.name} has no column {name!r}{nearest(name, self.columns)}; available: {there}")
        return self.columns[name]

    def words(self, name: str) -> Column:
        """Return a column. If it is text, strip the blanks around each value."""
        column = self.column(name)
        return np.strings.strip(column) if column.dtype.kind == "U" else column


def joined(tables: Sequence[Table], columns: Collection[str]) -> Table:
    """Join the given columns of several tables, one table below the other."""
    starts = np.cumsum([0, *(len(table.column(next(iter(columns)))) for table in tables)])

    def place(row: int) -> str:
        i = int(np.searchsorted(starts, row, side="right")) - 1
        return tables[i].place(row - int(starts[i]))

    whole = {name: np.concatenate([table.column(name) for table in tables]) for name in columns}
    return Table("the tables", whole, place, all(table.is_text for table in tables))


def same_length(name: str, columns: Mapping[str, Column]) -> None:
    """Raise a UserError if a column is not a list of values, or if two columns have different lengths."""
    first = next(iter(columns), "")
    for each, column in columns.items():
        if column.ndim == 0:
            raise UserError(f"{name}: column {each!r} is a single value; give one value for each row")
        if len(column) != len(columns[first]):
            raise UserError(
                f"{name}: column {each!r} has {len(column)} rows, but column {first!r} has {len(columns[first])}; "
                "all columns must have the same number of rows"
            )


def names_of(table: Table, name: str) -> Column:
    """Return the client of each row, as text. Different clients have different names."""
    column = _values(table, name, "fiubUO")
    _no_gaps(table, name, column, _NO_NAME)
    if column.dtype.kind == "f":
        if len(far := beyond(column)):
            raise UserError(
                f"{table.place(far[0])}: column {name!r} has a number that is too large for a floating-point number, "
                "so different clients could be merged; store the clients as text"
            )
        # pandas turns whole numbers into floats if a value was once missing. Adding 0 turns -0.0 into 0.0.
        column = column.astype(np.int64) if (column == np.round(column)).all() else column + 0
    if column.dtype.kind != "O":
        return column.astype(str)
    try:
        return to_text(column)
    except BadValueError as error:
        raise UserError(f"{table.place(error.row or 0)}: column {name!r} {error}") from None


def labels_of(table: Table, name: str, who: Column) -> Column:
    """Return the label of each row. Text becomes numbers only if every label is a number."""
    column = _values(table, name, "fiubUO")
    _no_gaps(table, name, column, _NO_NAME, who)
    if table.is_text and not np.strings.find(column, "_").max(initial=-1) >= 0:  # 1_0 would be 10
        try:
            return column.astype(np.float64)
        except ValueError:
            return column
    return column


def splits_of(table: Table, name: str) -> Column:
    """Return the split of each row: train, test or validation."""
    column = np.strings.lower(_values(table, name, "UO").astype(str))
    column = np.where(column == "val", "validation", column)
    bad = np.flatnonzero(~np.isin(column, SPLITS))
    if len(bad):
        raise UserError(f"{table.place(bad[0])}: column {name!r} must be train, test or validation")
    return column


def features_of(table: Table, chosen: Sequence[str] | None, others: Collection[str | None]) -> list[str]:
    """Return the chosen feature columns. By default, these are all columns that are not in `others`."""
    names = [name for name in table.columns if name not in others] if chosen is None else list(chosen)
    if not names:
        raise UserError(f"{table.name} has no feature columns")
    if unnamed := [name for name in names if chosen is None and (not name or name.startswith("__index_level_"))]:
        # pandas writes its row numbers like this. If rows are sorted by class, a model could read the class from them.
        raise UserError(
            f"{table.name} has a column {unnamed[0]!r} of row numbers; remove it or name the columns in `features`"
        )
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise UserError(f"`features` names column {twice[0]!r} twice; remove one")
    if overlap := [name for name in names if name in others]:
        raise UserError(
            f"column {overlap[0]!r} is the client, label or split and cannot be a feature; remove it from `features`"
        )
    return names


def matrix(table: Table, names: Sequence[str], who: Column) -> NDArray[Any]:
    """Return the features as a numeric matrix of N rows and M columns."""
    return np.column_stack([_numbers(table, name, who) for name in names])


def deal(who: Column, x: NDArray[Any], y: Column, table: Table, splits: Column | None) -> dict[str, Parts]:
    """Give each client its rows, in the order of the table. Clients are sorted by name."""
    names, owner = np.unique(who, return_inverse=True)
    rows = np.split(np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1])

    def part(mine: Column) -> Part:
        return Part(x[mine], y[mine], table.name, table.name, lambda row: table.place(int(mine[row])))

    if splits is None:
        return {str(name): {"train": part(mine)} for name, mine in zip(names, rows, strict=True)}
    given = [split for split in SPLITS if split != "validation" or split in splits]
    return {
        str(name): {split: part(mine[splits[mine] == split]) for split in given}
        for name, mine in zip(names, rows, strict=True)
    }


def _values(table: Table, name: str, kinds: str) -> Column:
    """Return a column with one value of the given NumPy kinds in each row."""
    column = table.words(name)
    if column.ndim != 1 or column.dtype.kind not in kinds:
        raise UserError(f"{table.name}: column {name!r} must have one number or text in each row, not {column.dtype}")
    return column


def _numbers(table: Table, name: str, who: Column) -> Column:
    column = table.column(name)
    if column.dtype.kind not in "fiubUO" or column.ndim != 1:
        raise UserError(f"{table.name}: column {name!r} holds {column.dtype}, not numbers; omit it from `features`")
    try:
        numbers = column if column.dtype.kind == "f" else column.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        _no_gaps(table, name, table.words(name), _NO_NUMBER, who)
        bad = next(row for row, value in enumerate(column) if not _is_number(value))
        raise UserError(
            f"client {str(who[bad])!r}: {table.place(bad)}: column {name!r} is not a number; encode it, or list "
            "the columns to use in `features`"
        ) from None
    _no_gaps(table, name, numbers, _NO_NUMBER, who)
    return numbers


def _no_gaps(table: Table, name: str, column: Column, gaps: Collection[str], who: Column | None = None) -> None:
    if column.dtype.kind == "f":
        bad = np.flatnonzero(np.isnan(column))
    elif column.dtype.kind == "U":
        bad = np.flatnonzero(np.isin(np.strings.lower(column), list(gaps)))
    elif column.dtype.kind == "O":
        bad = np.flatnonzero([_is_gap(value, gaps) for value in column])
    else:
        return
    if len(bad):
        client = "" if who is None else f"client {str(who[bad[0]])!r}: "
        raise UserError(f"{client}{table.place(bad[0])}: column {name!r} has no value; fill it in or remove the row")


_LONGEST_GAP = 100
"""Number of characters, with blanks around them, above which a text is not compared with the words for no value."""


def _is_gap(value: Any, gaps: Collection[str]) -> bool:
    if is_missing(value):
        return True
    # A long text in many rows would take minutes.
    return isinstance(value, str) and len(value) <= _LONGEST_GAP and value.strip().lower() in gaps


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
