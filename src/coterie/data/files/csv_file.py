"""CSV files. The line number of each row is kept, so that errors point to the place to fix."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.data.files import limits
from coterie.data.own.columns import Table
from coterie.errors import UserError


def read_csv(path: Path) -> Table:
    """Read a comma-separated UTF-8 file with column names in the first line. Blank lines are skipped."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            rows, lines = [], []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(names):
                    raise UserError(f"{path} line {reader.line_num} has {len(row)} values for {len(names)} columns")
                if any("\0" in value for value in row):
                    raise UserError(f"{path} line {reader.line_num} has a zero character; save it as CSV UTF-8")
                rows.append(row)
                lines.append(reader.line_num)
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; save it as CSV UTF-8") from None
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} is not valid CSV: {error}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if not rows:
        raise UserError(f"{path} has no rows below the line of column names")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path} has more than one column {twice[0]!r}; rename or remove one")
    columns = {name: _column(path, name, values) for name, *values in zip(names, *rows, strict=True)}
    return Table(str(path), columns, lambda row: f"{path} line {lines[row]}", is_text=True)


def _column(path: Path, name: str, values: list[str]) -> NDArray[np.str_]:
    widest = max(map(len, values))
    # NumPy stores text at the width of the longest, and some steps need a copy.
    limits.check(12 * widest * len(values), f"column {name!r} with a text of {widest:,} characters", path)
    return np.array(values)
