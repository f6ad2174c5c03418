"""Clients from the columns of a table: client, label, split and features."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.own.parts import SPLITS, Part, Parts
from coterie.data.own.values import LONGEST, BadValueError, beyond, is_missing, to_text
from coterie.data.ragged import Ragged
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


class Owners(NamedTuple):
    """The client of each row. A name is stored once, however many rows the client has."""

    names: tuple[str, ...]
    """Names of the clients, sorted."""
    owner: NDArray[np.intp]
    """Position in `names` of the client of each row."""

    def name(self, row: int) -> str:
        """Return the client of a row."""
        return self.names[int(self.owner[row])]

    @classmethod
    def of(cls, names: Sequence[str], owner: NDArray[np.intp]) -> "Owners":
        """Sort the names."""
        order = sorted(range(len(names)), key=names.__getitem__)
        place = np.empty(len(order), dtype=np.intp)
        place[order] = np.arange(len(order))
        return cls(tuple(names[i] for i in order), place[owner])


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


def repeated(names: Sequence[str]) -> str | None:
    """Return a name that occurs more than once, or None."""
    return next((name for name, times in Counter(names).items() if times > 1), None)


def kind_of(column: Column) -> str:
    """Describe what a column holds, for error messages."""
    return "lists or binary values" if column.dtype.kind == "V" else str(column.dtype)


def names_of(table: Table, name: str) -> Owners:
    """Return the client of each row. Different clients have different names."""
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
    if column.dtype.kind in "fiub":
        values, owner = np.unique(column, return_inverse=True)
        return Owners.of(values.astype(str).tolist(), owner)
    try:
        texts = to_text(column)
    except BadValueError as error:
        raise UserError(f"{table.place(error.row or 0)}: column {name!r} {error}") from None
    codes: dict[str, int] = {}
    owner = np.fromiter((codes.setdefault(text, len(codes)) for text in texts), np.intp, len(texts))
    return Owners.of([*codes], owner)


def labels_of(table: Table, name: str, who: Owners, regression: bool = False) -> Column:
    """Return the label of each row. Text becomes numbers only if every label is a number."""
    column = _values(table, name, "fiubUO")
    _no_gaps(table, name, column, _NO_NAME, who)
    if table.is_text and regression:
        return _numbers(table, name, who, "to predict classes instead, omit `regression`")
    if table.is_text and not any("_" in text for text in column):  # 1_0 would be 10
        try:
            return column.astype(np.float64)
        except ValueError:
            return column
    return column


def splits_of(table: Table, name: str) -> NDArray[np.int8]:
    """Return the split of each row, as its position in `SPLITS`."""
    column = _values(table, name, "UO")
    splits = np.fromiter((_split(value) for value in column), np.int8, len(column))
    bad = np.flatnonzero(splits < 0)
    if len(bad):
        raise UserError(f"{table.place(bad[0])}: column {name!r} must be train, test or validation")
    return splits


def _split(value: Any) -> int:
    word = value.lower() if isinstance(value, str) and len(value) <= _LONGEST_WORD else ""
    word = "validation" if word == "val" else word
    return SPLITS.index(word) if word in SPLITS else -1


def check_features(chosen: Any) -> None:
    """Raise a UserError if `features` is neither None nor a list of names."""
    if chosen is None:
        return
    if isinstance(chosen, str):
        raise UserError(f"`features` must be a list of columns, not a text; for one column, use features=[{chosen!r}]")
    if not isinstance(chosen, Iterable) or not all(isinstance(name, Hashable) for name in chosen):
        raise UserError("`features` must be a list of columns, such as features=['age', 'height']")


def features_of(table: Table, chosen: Sequence[str] | None, others: Collection[str | None]) -> list[str]:
    """Return the chosen feature columns. By default, these are all columns that are not in `others`."""
    check_features(chosen)
    names = [name for name in table.columns if name not in others] if chosen is None else list(chosen)
    if not names:
        raise UserError(f"{table.name} has no feature columns")
    if unnamed := [name for name in names if chosen is None and (not name or name.startswith("__index_level_"))]:
        # pandas writes its row numbers like this. If rows are sorted by class, a model could read the class from them.
        raise UserError(
            f"{table.name} has a column {unnamed[0]!r} of row numbers; remove it or name the columns in `features`"
        )
    if (twice := repeated(names)) is not None:
        raise UserError(f"`features` names column {twice!r} twice; remove one")
    if overlap := [name for name in names if name in others]:
        raise UserError(
            f"column {overlap[0]!r} is the client, label or split and cannot be a feature; remove it from `features`"
        )
    return names


def matrix(table: Table, names: Sequence[str], who: Owners) -> NDArray[Any]:
    """Return the features as a numeric matrix of N rows and M columns."""
    return np.column_stack([_numbers(table, name, who) for name in names])


def deal(who: Owners, x: NDArray[Any], y: Column, table: Table, splits: NDArray[np.int8] | None) -> Mapping[str, Parts]:
    """Give each client its rows, in the order of the table. Clients are sorted by name."""
    given = [] if splits is None else [i for i, split in enumerate(SPLITS) if split != "validation" or i in splits]
    rows = Ragged.by_owner(who.owner, len(who.names))

    def part(mine: Index) -> Part:
        return Part(x[mine], y[mine], table.name, table.name, lambda row: table.place(int(mine[row])))

    def parts(mine: Index) -> Parts:
        if splits is None:
            return {"train": part(mine)}
        return {SPLITS[i]: part(mine[splits[mine] == i]) for i in given}

    return Dealt(who.names, lambda i: parts(rows.row(i)))


class Dealt(Mapping[str, Parts]):
    """The examples of many clients, each made when it is asked for."""

    def __init__(self, names: Sequence[str], parts: Callable[[int], Parts]) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self._parts = parts

    def __getitem__(self, name: str) -> Parts:
        return self._parts(self._places[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _values(table: Table, name: str, kinds: str) -> Column:
    """Return a column with one value of the given NumPy kinds in each row."""
    column = table.words(name)
    if column.ndim != 1 or column.dtype.kind not in kinds:
        raise UserError(
            f"{table.name}: column {name!r} must have one number or text in each row, not {kind_of(column)}"
        )
    return column


_ENCODE = "encode it, or list the columns to use in `features`"


def _numbers(table: Table, name: str, who: Owners, advice: str = _ENCODE) -> Column:
    column = table.column(name)
    if column.dtype.kind not in "fiubUO" or column.ndim != 1:
        raise UserError(f"{table.name}: column {name!r} holds {kind_of(column)}, not numbers; omit it from `features`")
    try:
        if column.dtype.kind in "UO" and any(_is_odd(value) for value in column):
            raise ValueError
        numbers = column if column.dtype.kind == "f" else column.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        _no_gaps(table, name, table.words(name), _NO_NUMBER, who)
        bad = next(row for row, value in enumerate(column) if not _is_number(value))
        long = isinstance(column[bad], str) and len(column[bad]) > LONGEST
        reason = f"has a text of more than {LONGEST:,} characters" if long else "is not a number"
        raise UserError(f"client {who.name(bad)!r}: {table.place(bad)}: column {name!r} {reason}; {advice}") from None
    _no_gaps(table, name, numbers, _NO_NUMBER, who)
    return numbers


def _no_gaps(table: Table, name: str, column: Column, gaps: Collection[str], who: Owners | None = None) -> None:
    if column.dtype.kind == "f":
        bad = np.flatnonzero(np.isnan(column))
    elif column.dtype.kind == "U":
        bad = np.flatnonzero(np.isin(np.strings.lower(column), list(gaps)))
    elif column.dtype.kind == "O":
        bad = np.flatnonzero([_is_gap(value, gaps) for value in column])
    else:
        return
    if len(bad):
        client = "" if who is None else f"client {who.name(bad[0])!r}: "
        raise UserError(f"{client}{table.place(bad[0])}: column {name!r} has no value; fill it in or remove the row")


_LONGEST_WORD = 100
"""Number of characters, with blanks around them, above which a text is not compared with known words."""


def _is_gap(value: Any, gaps: Collection[str]) -> bool:
    if is_missing(value):
        return True
    # A long text in many rows would take minutes.
    return isinstance(value, str) and len(value) <= _LONGEST_WORD and value.strip().lower() in gaps


def _is_odd(value: Any) -> bool:
    """Return whether a text is refused as a number, although Python's `float` may read it."""
    return isinstance(value, str) and ("_" in value or len(value) > LONGEST)  # 1_0 would be 10


def _is_number(value: Any) -> bool:
    if _is_odd(value):
        return False
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
