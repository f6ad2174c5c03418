"""Inputs without labels, for a model that is already there."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.files import limits, npz
from coterie.data.own.columns import Owners, features_of, matrix
from coterie.data.own.table import read
from coterie.errors import UserError

HERE = "here"
"""Name of the only client."""


def read_inputs(path: Path, features: Sequence[str] | None = None, others: Collection[str] = ()) -> NDArray[Any]:
    """Read the inputs of a table or of an npz file.

    Args:
        path: a CSV or Parquet file, or an npz file with an array x.
        features: feature columns of a table. By default, these are all columns that are not in `others`.
        others: columns of a table that are no features, such as a label that is known already.
    """
    if not path.is_file():
        raise UserError(f"file {path} does not exist")
    if path.suffix.lower() == ".npz":
        arrays = npz.load(HERE, path, limits.Budget())
        if "x" not in arrays:
            raise UserError(f"{path} needs an array x; found: {', '.join(arrays) or 'nothing'}")
        return _checked(np.asarray(arrays["x"]), path)
    table = read(path)
    names = features_of(table, features, set(others) & set(table.columns))
    rows = len(table.column(names[0]))
    return matrix(table, names, Owners((HERE,), np.zeros(rows, dtype=np.intp)))


def _checked(x: NDArray[Any], path: Path) -> NDArray[Any]:
    if x.dtype.kind not in "biuf":
        raise UserError(f"the array x of {path} has type {x.dtype}; save it with numbers only")
    if not np.isfinite(x).all():
        raise UserError(f"the array x of {path} has values that are NaN or infinite; fill them in or remove the rows")
    return x
