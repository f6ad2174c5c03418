"""Clients from one table: a CSV or Parquet file, or a data frame."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.federation import Federation
from coterie.data.files import limits
from coterie.data.files.csv_file import read_csv
from coterie.data.own.columns import (
    Table,
    deal,
    features_of,
    labels_of,
    matrix,
    names_of,
    repeated,
    same_length,
    splits_of,
)
from coterie.data.own.pool import pool
from coterie.data.own.values import BadValueError, to_array
from coterie.errors import UserError
from coterie.settings import user_path

TABLES = (".csv", ".parquet")


def from_table(
    source: Any, *, client: str, label: str, split: str | None, features: Sequence[str] | None, **choices: Any
) -> Federation:
    """Build a federation; see `Federation.from_table`."""
    table = read(source) if isinstance(source, str | Path) else frame(source)
    who = names_of(table, client)
    splits = None if split is None else splits_of(table, split)
    # Check it before the features: if it is misspelt, the true label would be one of them.
    y = labels_of(table, label, who, bool(choices.get("regression")))
    x = matrix(table, features_of(table, features, {client, label, split}), who)
    return pool(deal(who, x, y, table, splits), **choices)


def read(source: str | Path, budget: limits.Budget | None = None) -> Table:
    """Read a CSV or Parquet file. The format is chosen by the file name extension.

    `budget` is shared by the files of a folder.
    """
    path = user_path(source)
    if path.suffix.lower() not in TABLES:
        raise UserError(f"{source} is neither a .csv nor a .parquet file")
    if not path.is_file():
        raise UserError(f"file {source} does not exist")
    reader = read_csv if path.suffix.lower() == ".csv" else _read_parquet
    return reader(path, budget or limits.Budget())


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


def _read_parquet(path: Path, budget: limits.Budget) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"reading {path} needs pyarrow: pip install 'coterie[tables]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            facts, schema = file.metadata, file.schema_arrow
        if (twice := repeated(schema.names)) is not None:
            raise UserError(f"{path} has more than one column {twice!r}; rename or remove one")
        _spend(path, facts, budget)
        # Text that occurs often is stored once, in the file and in memory.
        text = {field.name for field in schema if _plain(field.type) in _text(pyarrow)}
        used = {field.name for field in schema if _is_plain(pyarrow, field.type)}
        only = None if len(used) == len(schema) else sorted(used)
        frugal = {"use_threads": False, "pre_buffer": False}  # otherwise each column takes 90 kB while it is read
        table = parquet.read_table(path, columns=only, read_dictionary=sorted(text), partitioning=None, **frugal)
        table.validate(full=True)  # text may be stored as places in a list, which a damaged file can exceed
        found = dict(zip(table.column_names, table.columns, strict=True))
        unread = np.broadcast_to(np.zeros((), dtype="V1"), facts.num_rows)  # takes no memory
        columns = {name: found[name] if name in used else unread for name in schema.names}
        return frame({name: _words(each) if name in text else each for name, each in columns.items()}, str(path))
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise UserError(f"{path} is not a Parquet file, or is damaged: {error}") from None


def _text(pyarrow: Any) -> tuple[Any, ...]:
    return pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()


def _plain(kind: Any) -> Any:
    """Return the type of the values of a column, also if it is stored as places in a list of values."""
    return kind.value_type if hasattr(kind, "index_type") else kind


def _is_plain(pyarrow: Any, kind: Any) -> bool:
    """Return whether a column has one value in each row that is not binary. Others can be huge, and are not used."""
    kind, types = _plain(kind), pyarrow.types
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    return not (is_binary or types.is_binary_view(kind) or types.is_nested(kind)) or types.is_decimal(kind)


def _spend(path: Path, facts: Any, budget: limits.Budget) -> None:
    groups = [facts.row_group(i) for i in range(facts.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)  # pyarrow crashes on damaged facts about columns
    rows = sum(group.num_rows for group in groups)
    # A cell is a number up to five times while features are dealt and split. A row has a client, a label and a place.
    needed = 2 * unpacked + 40 * rows * (facts.num_columns + 1)
    budget.spend(path, needed, f"a table of {facts.num_rows:,} rows and {facts.num_columns:,} columns")


def _words(column: Any) -> NDArray[Any]:
    """Return a column of text as objects. Equal texts are one object, and missing ones are None."""
    parts = [np.empty(0, dtype=object)]
    for chunk in column.chunks if hasattr(column.type, "index_type") else column.dictionary_encode().chunks:
        words = np.array([*chunk.dictionary.to_pylist(), None], dtype=object)
        parts.append(words[chunk.indices.fill_null(len(words) - 1).to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)
