"""Safe reading of pickle files from others, without running their code.

A pickle is a program: it names functions and calls them. Only the functions that rebuild NumPy arrays are allowed,
under all the names they have had over the years. A file that names anything else is refused.
"""

import codecs
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.files.unpack import content, damaged
from coterie.errors import UserError


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Encode bytes as pickles of protocol 2 store them. Other codecs are refused: they could unpack to any size."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return codecs.encode(text, "latin1")


_reconstruct, _scalar = np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encode,
}


def load(path: Path, more: Mapping[tuple[str, str], Any] | None = None) -> Any:
    """Load a pickle file. `more` lists further classes that its format needs, by module and name."""
    try:
        return _Restricted(io.BytesIO(content(path)), path, more or {}).load()
    except UserError:
        raise
    except Exception as error:  # damaged pickles raise almost any exception
        raise damaged(path, f"it is not a pickle of arrays ({error})") from error


class _Restricted(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, path: Path, more: Mapping[tuple[str, str], Any]) -> None:
        super().__init__(file, encoding="latin1")  # pickles from Python 2 store bytes as strings
        self._path, self._allowed = path, {**_ALLOWED, **more}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._allowed:
            return self._allowed[module, name]
        raise UserError(
            f"{self._path} is refused: it asks for {module}.{name}, which a file of arrays does not need; "
            "it may run harmful code, so do not open it with other programs"
        )
