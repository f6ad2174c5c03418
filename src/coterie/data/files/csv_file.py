"""CSV files. The line number of each row is kept, so that errors point to the place to fix."""

import csv
import sys
from array import array
from pathlib import Path

import numpy as np

from coterie.data.files import limits
from coterie.data.own.columns import Table, repeated
from coterie.errors import UserError


def read_csv(path: Path, budget: limits.Budget) -> Table:
    """Read a comma-separated UTF-8 file with column names in the first line. Blank lines are skipped."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            if (twice := repeated(names)) is not None:
                raise UserError(f"{path} has more than one column {twice!r}; rename or remove one")
            columns: list[list[str]] = [[] for _ in names]
            lines, needed, most = array("q"), 0, limits.allowed(path)
            for row in reader:
                if not row:
                    continue
                if len(row) != len(names):
                    raise UserError(f"{path} line {reader.line_num} has {len(row)} values for {len(names)} columns")
                if any("\0" in value for value in row):
                    raise UserError(f"{path} line {reader.line_num} has a zero character; save it as CSV UTF-8")
                row = [value.strip() for value in row]
                needed += _PER_ROW + sum(map(_size, row))
                if needed > most:
                    raise limits.refused(path, f"the table up to line {reader.line_num}", needed, most)
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
                lines.append(reader.line_num)
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; save it as CSV UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} is not valid CSV: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if not lines:
        raise UserError(f"{path} has no rows below the line of column names")
    budget.spend(path, needed, f"a table of {len(lines):,} rows")
    # An array of text would be as wide as its longest text in every row.
    table = {name: np.array(values, dtype=object) for name, values in zip(names, columns, strict=True)}
    return Table(str(path), table, lambda row: f"{path} line {lines[row]}", is_text=True)


_PER_ROW = 40
"""Bytes of memory for the client, label, split and line number of a row."""
_PER_CELL = 56
"""Bytes of memory for a cell besides its text: two references, and five numbers while features are dealt and split."""


def _size(text: str) -> int:
    return _PER_CELL + (sys.getsizeof(text) if len(text) > 1 else 0)  # Python has each short text only once
