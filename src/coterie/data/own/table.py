"""Clients from one table: a CSV or Parquet file, or a data frame."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from coterie.data.federation import Federation
from coterie.data.files.csv_file import read_csv
from coterie.data.own.columns import Table, deal, features_of, labels_of, matrix, names_of, same_length, splits_of
from coterie.data.own.pool import pool
from coterie.data.own.values import BadValueError, to_array
from coterie.errors import UserError

TABLES = (".csv", ".parquet")


def from_table(
    source: Any, *, client: str, label: str, split: str | None, features: Sequence[str] | None, **choices: Any
) -> Federation:
    """Build a federation; see `Federation.from_table`."""
    table = read(source) if isinstance(source, str | Path) else frame(source)
    who = names_of(table, client)
    splits = None if split is None else splits_of(table, split)
    y = labels_of(
        table, label, who
    )  # check it before the features: if it is misspelt, the true label would be one of them
    x = matrix(table, features_of(table, features, {client, label, split}), who)
    return pool(deal(who, x, y, table, splits), **choices)


def read(source: str | Path) -> Table:
    """Read a CSV or Parquet file. The format is chosen by the file name extension."""
    path = Path(source).expanduser()
    if path.suffix.lower() not in TABLES:
        raise UserError(f"{source} is neither a .csv nor a .parquet file")
    if not path.is_file():
        raise UserError(f"file {source} does not exist")
    return read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)


def frame(source: Any, name: str = "the table") -> Table:
    """Convert any object with named columns: pandas, polars, pyarrow, or a dict of lists."""
    columns = getattr(source, "column_names", None)
    if columns is None:
        columns = source if isinstance(source, Mapping) else getattr(source, "columns", None)
    if columns is None:
        raise UserError(f"expected a path or a data frame, not {type(source).__name__}")
    found: dict[str, NDArray[Any]] = {}
    for each in columns:
        if str(each) in found:
            raise UserError(f"{name} has more than one column {str(each)!r}; rename or remove one")
        try:
            found[str(each)] = to_array(source[each])
        except BadValueError as error:
            raise UserError(f"{name} row {error.row}: column {str(each)!r} {error}") from None
        except (TypeError, ValueError) as error:
            raise UserError(f"{name}: column {str(each)!r} cannot be converted to an array: {error}") from None
    same_length(name, found)
    return Table(name, found, lambda row: f"{name} row {row}")


def _read_parquet(path: Path) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"reading {path} needs pyarrow: pip install 'coterie[tables]'") from None
    try:
        return frame(parquet.read_table(path), str(path))
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is not a Parquet file, or is damaged: {error}") from None
