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


ARRAY = (
    b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    b"(K\x01K\x01K\x02\x86%s\x89U\x02\x00\xfftb."
)
"""An array of two bytes, without its type."""
OBJECTS = b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
"""The type of Python objects, with flags that deny it."""
BYTES = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        # NumPy's own reader would follow the bytes of this array as pointers to objects, and crash.
        ((ARRAY % OBJECTS).replace(b"U\x02\x00\xff", b"U\x10" + b"A" * 16), "not plain numbers"),
        (
            ARRAY % (BYTES + b"(K\x03U\x01|K\x07NNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb"),
            "the type of an array is invalid",
        ),
        (ARRAY % b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R", "not plain numbers"),
        (ARRAY % b"cnumpy\ndtype\nU\x02V8K\x00K\x01\x87R", "not plain numbers"),
        (ARRAY % (BYTES + b"(K\x03U\x01|tb"), "the type of an array is invalid"),
        (ARRAY % (BYTES + b"Nb"), "the type of an array is invalid"),
        (ARRAY % b"N", "an array has no type"),
        (ARRAY % b"cnumpy\ndtype\nU\x02i8K\x00K\x01\x87R", "an array of 2 elements has 2 bytes"),
        ((ARRAY % BYTES).replace(b"K\x02\x86", b"J\xff\xff\xff\xff\x86"), "the shape of an array is invalid"),
        (
            (ARRAY % BYTES).replace(b"K\x01K\x02\x86", b"(" + b"K\x01" * 99 + b"K\x02t"),
            "the shape of an array is invalid",
        ),
        (b"cnumpy\nndarray\n)R.", "an array has no content"),
        (b"]Nb.", "gives a state to an object that has none"),
        (b"K\x01)R.", "calls what is not a function"),
        (b"}))s.", "the key of a dict is neither text nor a number"),
        (b"]r\xff\xff\xff\x7f.", None),
        (b"K\x01e.", "a mark is missing"),
        (b"\x8f.", "instruction EMPTY_SET"),
        (
            b"X\x63\x00\x00\x00" + b"a" * 99 + b"q\x00" + b"c_codecs\nencode\nh\x00\x85R0" * 9 + b".",
            "uses the same text many times",
        ),
    ],
)
def test_no_state_reaches_numpy(tmp_path: Path, content: bytes, reason: str | None) -> None:
    path = saved(tmp_path / "batch", content)
    if reason is None:
        pickles.load(path)
        return
    with pytest.raises(UserError, match=reason):
        pickles.load(path)


def test_bytes_may_have_another_order_and_arrays_another_layout(tmp_path: Path) -> None:
    tree = {
        "big": np.arange(3, dtype=">i4"),
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "flag": np.True_,
    }
    loaded = pickles.load(saved(tmp_path / "batch", tree))
    assert loaded["big"].tolist() == [0, 1, 2]
    assert loaded["columns"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert loaded["flag"] is True


@pytest.mark.parametrize("nest", [b"]" * 1_000_000 + b"a" * 999_999, b"K\x01" + b"\x85" * 1_000_000])
def test_deep_nesting_is_no_problem(tmp_path: Path, nest: bytes) -> None:
    assert len(pickles.load(saved(tmp_path / "batch", nest + b"."))) == 1


def test_a_program_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "_MOST_INSTRUCTIONS", 1000)
    with pytest.raises(UserError, match="more than 1,000 instructions"):
        pickles.load(saved(tmp_path / "batch", b"]" * 2000 + b"."))


@pytest.mark.parametrize("content", [b"", b"<html>", pickle.dumps([1, 2, 3])[:-4]])
def test_damage_is_told(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match="is not a pickle of arrays"):
        pickles.load(saved(tmp_path / "batch", content))
