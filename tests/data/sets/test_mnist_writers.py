import struct
from pathlib import Path

import numpy as np
import pytest

from coterie.data.sets.mnist_writers import MNISTWriters
from coterie.errors import UserError
from data.sets.published import need
from data.sets.test_mnist import write_toy


def write(folder: Path, part: str, classes: list[int], writers: list[int]) -> None:
    rows = np.zeros((len(classes), 8), dtype=">i4")
    rows[:, 0], rows[:, 2] = classes, writers
    header = struct.pack(">HBB2I", 0, 0x0C, 2, *rows.shape)
    (folder / f"qmnist-{part}-labels-idx2-int").write_bytes(header + rows.tobytes())


def write_all(folder: Path) -> None:
    write_toy(folder)
    write(folder, "train", [*range(10), 0, 1], [300] * 4 + [7] * 8)
    write(folder, "test", [*range(10)], [9] * 7 + [1] * 3)  # the file continues after MNIST's images


def test_a_quarter_of_each_writer_is_tested_on(tmp_path: Path) -> None:
    write_all(tmp_path)
    data = MNISTWriters(path=str(tmp_path)).load()
    assert data.groups is not None
    assert data.groups.names == ("7", "300")
    assert (np.bincount(data.groups.train).tolist(), np.bincount(data.groups.test).tolist()) == ([6, 3], [2, 1])
    assert len(data.x_train) == len(data.y_train) == 9
    assert sorted([*data.y_train, *data.y_test]) == sorted([*range(10), 0, 1])


def test_the_official_split_has_other_people_to_test(tmp_path: Path) -> None:
    write_all(tmp_path)
    data = MNISTWriters(path=str(tmp_path), split="official").load()
    assert data.groups is not None
    assert data.groups.names == ("7", "9", "300")
    assert data.groups.train.tolist() == [2] * 4 + [0] * 8
    assert data.groups.test.tolist() == [1] * 7


@pytest.mark.parametrize(
    ("classes", "reason"), [([*range(10), 0, 2], "row 11 has class 2 where MNIST has 1"), ([0], r"shape is \(1, 8\)")]
)
def test_labels_of_other_images_are_refused(tmp_path: Path, classes: list[int], reason: str) -> None:
    write_all(tmp_path)
    write(tmp_path, "train", classes, [1] * len(classes))
    with pytest.raises(UserError, match=reason):
        MNISTWriters(path=str(tmp_path)).load()


def test_published_facts() -> None:
    need("mnist")
    need("qmnist-labels")
    official = MNISTWriters(split="official").load()
    assert official.groups is not None
    sizes = np.bincount(official.groups.train)
    sizes = sizes[sizes > 0]
    assert (len(sizes), sizes.min(), np.median(sizes), sizes.max()) == (539, 19, 116, 131)
    assert len(np.unique(official.groups.test)) == 297
    assert not set(official.groups.train) & set(official.groups.test)
    data = MNISTWriters().load()
    assert data.groups is not None
    assert len(data.groups.names) == 539
    assert len(np.unique(data.groups.train)) == len(np.unique(data.groups.test)) == 539
    assert len(data.y_test) == sum(sizes // 4)
    assert np.bincount(np.concatenate([data.y_train, data.y_test])).tolist() == np.bincount(official.y_train).tolist()
