import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from coterie.data.sets.emnist import EMNIST
from coterie.errors import UserError
from data.sets.published import need


def write(folder: Path, part: str, labels: list[int]) -> None:
    images = np.zeros((len(labels), 28, 28), dtype=np.uint8)
    images[:, 3, 20] = 255  # in the file: line 3, column 20
    header = struct.pack(">HBB3I", 0, 8, 3, *images.shape)
    (folder / f"emnist-byclass-{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + images.tobytes()))
    (folder / f"emnist-byclass-{part}-labels-idx1-ubyte").write_bytes(
        struct.pack(">HBBI", 0, 8, 1, len(labels)) + bytes(labels)
    )


def test_images_are_turned_upright_and_labels_named(tmp_path: Path) -> None:
    write(tmp_path, "train", [0, 10, 36, 61])
    write(tmp_path, "test", [61])
    data = EMNIST(path=str(tmp_path)).load()
    assert data.y_train.tolist() == [0, 10, 36, 61]
    assert [data.labels[label] for label in data.y_train] == ["0", "A", "a", "z"]
    assert np.argwhere(data.x_train[0]).tolist() == [[20, 3]]
    assert (data.x_test.shape, data.x_test.dtype, data.x_test.max()) == ((1, 28, 28), np.float32, 1)


def test_the_test_part_alone_must_be_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "test", [0, 1] * 8)
    with pytest.raises(UserError, match="emnist: missing emnist-byclass-train-images-idx3-ubyte") as caught:
        EMNIST(path=str(tmp_path)).load()
    assert str(caught.value).endswith("To use only a part of the data: --set data.split=test-only")
    data = EMNIST(path=str(tmp_path), split="test-only").load()
    assert (np.bincount(data.y_train).tolist(), np.bincount(data.y_test).tolist()) == ([6, 6], [2, 2])


def test_published_facts() -> None:
    need("emnist-byclass-test")
    data = EMNIST(split="test-only").load()
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    assert x.shape == (116323, 28, 28)
    assert (x.mean(dtype=np.float64), x.std(dtype=np.float64)) == pytest.approx((0.1736, 0.3317), abs=5e-5)
    counts = np.bincount(y, minlength=62)
    assert counts[:10].tolist() == [5778, 6330, 5869, 5969, 5619, 5190, 5705, 6139, 5633, 5686]
    assert counts.min() > 0
    assert counts[:10].sum() == 57918
    # A capital T is upright: more ink in its bar, above, than anywhere on its left.
    mean_t = x[y == data.labels.index("T")].mean(axis=0)
    assert mean_t[3:10].sum() > 1.5 * mean_t[:, 3:10].sum()
    assert len(data.y_test) == sum(counts // 4)
