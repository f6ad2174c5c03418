import builtins
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.files import pickles
from coterie.errors import UserError


def saved(path: Path, content: Any, protocol: int = 2) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_arrays_come_back(tmp_path: Path, protocol: int) -> None:
    tree = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2], "n": np.int64(3), "raw": b"\xff"}
    loaded = pickles.load(saved(tmp_path / "batch", tree, protocol))
    np.testing.assert_array_equal(loaded["data"], tree["data"])
    assert {key: loaded[key] for key in ("labels", "n", "raw")} == {"labels": [1, 2], "n": 3, "raw": b"\xff"}


def test_a_pickle_of_python_2_comes_back(tmp_path: Path) -> None:
    """Return `cPickle.dumps({'data': numpy.array([[0, 255]], 'uint8')}, 2)`, which stores bytes as strings."""
    content = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89U\x02\x00\xfftbs."
    )
    assert pickles.load(saved(tmp_path / "batch", content))["data"].tolist() == [[0, 255]]


class Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize(
    ("function", "argument"),
    [(os.system, "touch {}"), (builtins.eval, "open('{}', 'w')"), (builtins.exec, "open('{}', 'w')"), (open, "{}")],
)
def test_a_malicious_pickle_is_refused_and_runs_nothing(tmp_path: Path, function: Any, argument: str) -> None:
    trace = tmp_path / "trace"
    path = saved(tmp_path / "batch", {"data": Runs(function, argument.format(trace))})
    with pytest.raises(UserError, match=r"is refused: it asks for .*\."):
        pickles.load(path)
    assert not trace.exists()


def test_a_codec_that_unpacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="encoding 'zip'"):
        pickles.load(saved(tmp_path / "batch", b"c_codecs\nencode\n(S'a'\nS'zip'\ntR."))


def test_what_a_format_needs_can_be_added(tmp_path: Path) -> None:
    path = saved(tmp_path / "graph", b"ccollections\nOrderedDict\n)R.")
    with pytest.raises(UserError, match=r"collections\.OrderedDict"):
        pickles.load(path)
    assert pickles.load(path, more={("collections", "OrderedDict"): dict}) == {}


@pytest.mark.parametrize("content", [b"", b"<html>", pickle.dumps([1, 2, 3])[:-4]])
def test_damage_is_told(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match="is not a pickle of arrays"):
        pickles.load(saved(tmp_path / "batch", content))
