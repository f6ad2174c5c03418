import gzip
from pathlib import Path

import numpy as np
import pytest

from coterie.data.sets.dataset import Dataset
from coterie.data.sets.libsvm import LibSVM, read
from coterie.data.sets.libsvm_sets import A6A, A9A, W6A, W8A, Mushrooms
from coterie.errors import UserError
from data.sets.published import need

TEXT = b"2 1:0.5 3:-2\n-1 2:1e1   # a remark\n\n2\n5 3:4\n"


def written(folder: Path, text: bytes = TEXT, name: str = "toy.svm") -> Path:
    path = folder / name
    path.write_bytes(text)
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_rows_are_dense_and_labels_numbered_in_their_order(tmp_path: Path, pack) -> None:
    written(tmp_path, pack(TEXT))
    written(tmp_path, b"5 1:1\n", "toy.t")
    data = LibSVM(path=str(tmp_path), file="toy.svm", test_file="toy.t").load()
    assert data.x_train.dtype == np.float32
    assert data.x_train.tolist() == [[0.5, 0, -2], [0, 10, 0], [0, 0, 0], [0, 0, 4]]
    assert (data.y_train.tolist(), data.y_test.tolist(), data.labels) == ([1, 0, 1, 2], [2], (-1, 2, 5))
    assert data.x_test.tolist() == [[1, 0, 0]]


def test_without_a_test_file_a_quarter_of_each_class_is_held_back(tmp_path: Path) -> None:
    written(tmp_path, b"".join(b"%d 1:%d\n" % (row % 2, row) for row in range(80)))
    data = LibSVM(path=str(tmp_path), file="toy.svm", features=4).load()
    assert (data.x_train.shape, data.x_test.shape) == ((60, 4), (20, 4))
    assert np.bincount(data.y_test).tolist() == [10, 10]
    assert sorted([*data.x_train[:, 0], *data.x_test[:, 0]]) == list(range(80))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"1 1:1\n0 x:1\n", "line 2: expected 'label index:value"),
        (b"1 1\n", "line 1: expected"),
        (b"cat 1:1\n", "line 1: expected"),
        (b"1 0:1\n", "line 1: an index is below 1 or appears twice"),
        (b"0 1:1\n1 2:1 2:3\n", "line 2: an index is below 1 or appears twice"),
        (b"0 1:1\n1 9223372036854775809:1\n", "line 2: expected 'label index:value"),
        (b"0 1:1\n1 99999999999999999999:1\n", "line 2: expected 'label index:value"),
        (b"0 1:1\n1 %s:1\n" % (b"9" * 5000), "line 2: expected 'label index:value"),
        (b"0 1:1\n9007199254740993 1:1\n9007199254740992 1:1\n", "line 2: the label is too large"),
        (b"10 1:1\n1_0 1:1\n", "line 2: a number contains an underscore"),
        (b"0 1:nan\n1 1:1\n", "contains NaN"),
        (b"0 1:1e60\n1 1:1\n", "too large for float32"),
        (b"\n# nothing\n", "has no rows"),
        (b"1 1:1\n1 1:2\n", "two or more different values, found: 1$"),
        (b"0.5 1:1\n1.5 1:2\n", r"two or more different values, found: 0\.5, 1\.5"),
        (b"0 1:1\n1 9:2\n", "has a feature 9, but there should be only 8"),
    ],
)
def test_a_bad_file_is_told_with_its_line(tmp_path: Path, text: bytes, reason: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError, match=reason) as caught:
        LibSVM(path=str(tmp_path), file="toy.svm", features=8).load()
    assert str(path) in str(caught.value)


def test_what_would_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, b"1 1:1\n2 1000000001:1\n")
    match = r"a dense matrix of 2 rows and 1,000,000,001 columns would take 16\.0 GB .* COTERIE_MAX_GB=17$"
    with pytest.raises(UserError, match=match) as caught:
        LibSVM(path=str(tmp_path), file="toy.svm").load()
    assert str(caught.value).startswith(f"{path} is refused")
    with pytest.raises(UserError, match=r"2 rows and 9,000,000,000 columns would take 144\.0 GB"):
        LibSVM(path=str(written(tmp_path, b"1 1:1\n2 1:1\n").parent), file="toy.svm", features=9 * 10**9).load()


def test_a_file_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"libsvm needs a file: --set data\.path"):
        LibSVM().load()
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("dataset", "train", "test", "train_counts", "test_counts", "labels"),
    [
        (Mushrooms, (6093, 112), (2031, 112), [2937, 3156], [979, 1052], (1, 2)),
        (A6A, (11220, 123), (21341, 123), [8528, 2692], [16192, 5149], (-1, 1)),
        (A9A, (32561, 123), (16281, 123), [24720, 7841], [12435, 3846], (-1, 1)),
        (W6A, (17188, 300), (32561, 300), [16663, 525], [31607, 954], (-1, 1)),
        (W8A, (49749, 300), (14951, 300), [48270, 1479], [14497, 454], (-1, 1)),
    ],
)
def test_published_facts(dataset: type[Dataset], train, test, train_counts, test_counts, labels) -> None:
    need("libsvm")
    data = dataset().load()
    assert (data.x_train.shape, data.x_test.shape, data.labels) == (train, test, labels)
    assert np.bincount(data.y_train).tolist() == train_counts
    assert np.bincount(data.y_test).tolist() == test_counts
    assert set(np.unique(data.x_train)) == {0, 1}
    if dataset is Mushrooms:
        assert (data.x_train.sum(axis=1) == 21).all()  # exactly one value of each of its 21 attributes


def test_a_named_set_must_have_its_rows(tmp_path: Path) -> None:
    written(tmp_path, b"1 1:1\n2 1:1\n", "mushrooms")
    with pytest.raises(UserError, match="it has 2 rows, expected 8124; delete it"):
        Mushrooms(path=str(tmp_path)).load()
    for name in ("a9a", "a9a.t"):
        written(tmp_path, b"1 1:1\n-1 1:1\n", name)
    with pytest.raises(UserError, match="have 2 and 2 rows, expected 32561 and 16281"):
        A9A(path=str(tmp_path)).load()
