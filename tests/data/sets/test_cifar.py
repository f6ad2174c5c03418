import gzip
import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.sets.cifar10 import CIFAR10
from coterie.data.sets.cifar100 import CIFAR100
from coterie.errors import UserError
from data.sets.published import need


def pixels(count: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def binary(rows: np.ndarray[Any, Any], *labels: list[int]) -> bytes:
    return np.column_stack([*(np.array(each, dtype=np.uint8) for each in labels), rows]).tobytes()


def write_ten(folder: Path, layout: str, batches: int = 5) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate([*(f"data_batch_{n}" for n in range(1, batches + 1)), "test_batch"]):
        rows, labels = pixels(3, seed), [seed, 9, 0]
        if layout == "binary":
            (folder / f"{name}.bin").write_bytes(binary(rows, labels))
        elif layout == "xz":
            (folder / f"{name}.bin.xz").write_bytes(lzma.compress(binary(rows, labels), preset=0))
        else:
            (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": labels, "batch_label": name}, 2))


@pytest.mark.parametrize(
    ("layout", "folder"),
    [("binary", ""), ("xz", ""), ("binary", "cifar-10-batches-bin"), ("python", ""), ("python", "cifar-10-batches-py")],
)
def test_every_layout_gives_the_same(tmp_path: Path, layout: str, folder: str) -> None:
    write_ten(tmp_path / folder, layout)
    data = CIFAR10(path=str(tmp_path)).load()
    assert (data.x_train.shape, data.x_test.shape) == ((15, 3, 32, 32), (3, 3, 32, 32))
    assert data.x_train.dtype == np.float32
    assert data.y_train.tolist() == [0, 9, 0, 1, 9, 0, 2, 9, 0, 3, 9, 0, 4, 9, 0]
    assert data.y_test.tolist() == [5, 9, 0]
    rows = pixels(3, seed=5)
    assert data.x_test[1, 2, 0, 1] == rows[1, 2 * 1024 + 1] / np.float32(255)  # blue, first line, second pixel
    assert data.labels[0] == "airplane"


def test_fewer_batches_must_be_asked_for(tmp_path: Path) -> None:
    write_ten(tmp_path, "binary", batches=2)
    with pytest.raises(
        UserError, match=r"cifar-10: missing data_batch_3\.bin, data_batch_4\.bin, data_batch_5\.bin"
    ) as caught:
        CIFAR10(path=str(tmp_path)).load()
    assert str(caught.value).endswith("To use only a part of the data: --set data.batches=1")
    assert len(CIFAR10(path=str(tmp_path), batches=2).load().y_train) == 6


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("test_batch.bin", b"\0" * 3072, "its 3072 bytes are not a whole number of records of 3073"),
        ("test_batch.bin", b"", "its 0 bytes are not a whole number of records"),
        ("test_batch.bin", b"\x0a" + b"\0" * 3072, r"label 10 at row 0 is outside 0\.\.9"),
        ("test_batch", pickle.dumps({"data": np.zeros((1, 3072), np.uint8)}), "no numbers in 'data' and 'labels'"),
        ("test_batch", pickle.dumps({"data": np.zeros((1, 9), np.uint8), "labels": [1]}), r"shapes \(1, 9\)"),
        ("test_batch", pickle.dumps({"data": np.zeros((1, 3072), np.int64), "labels": [1]}), "no numbers in 'data'"),
        ("test_batch", pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1.5]}), "no numbers in 'data'"),
        ("test_batch", pickle.dumps([1, 2]), "no numbers in 'data' and 'labels'"),
        ("test_batch", pickle.dumps(print), r"is refused: it asks for builtins\.print"),
    ],
)
def test_damage_is_told(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    write_ten(tmp_path, "binary" if name.endswith(".bin") else "python")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=reason):
        CIFAR10(path=str(tmp_path)).load()


def test_published_facts_of_cifar_10() -> None:
    need("cifar-10")
    data = CIFAR10(batches=1).load()
    assert np.bincount(data.y_train).tolist() == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    assert np.bincount(data.y_test).tolist() == [1000] * 10
    both = np.concatenate([data.x_train, data.x_test])
    assert both.shape == (20000, 3, 32, 32)
    # Published over all 50000 training images; a sample of 20000 comes close.
    np.testing.assert_allclose(both.mean(axis=(0, 2, 3)), [0.4914, 0.4822, 0.4465], atol=0.005)
    np.testing.assert_allclose(both.std(axis=(0, 2, 3)), [0.2470, 0.2435, 0.2616], atol=0.003)


def write_hundred(folder: Path, layout: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fine, coarse = [f"fine{n}" for n in range(100)], [f"coarse{n}" for n in range(20)]
    for seed, name in enumerate(("train", "test")):
        rows = pixels(4, seed)
        if layout == "binary":
            (folder / f"{name}.bin.gz").write_bytes(gzip.compress(binary(rows, [19, 0, 3, 4], [99, 0, 7, seed])))
        else:
            tree = {
                "data": rows,
                "fine_labels": [99, 0, 7, seed],
                "coarse_labels": [19, 0, 3, 4],
                "filenames": ["a.png"],
            }
            (folder / name).write_bytes(pickle.dumps(tree, 2))
    (folder / "fine_label_names.txt").write_text("\n".join(fine) + "\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(coarse) + "\n")
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": fine, "coarse_label_names": coarse}, 2))


@pytest.mark.parametrize(
    ("layout", "folder"),
    [("binary", ""), ("binary", "cifar-100-binary"), ("python", ""), ("python", "cifar-100-python")],
)
def test_cifar_100_has_fine_and_coarse_labels(tmp_path: Path, layout: str, folder: str) -> None:
    write_hundred(tmp_path / folder, layout)
    fine, coarse = CIFAR100(path=str(tmp_path)).load(), CIFAR100(path=str(tmp_path), labels="coarse").load()
    assert (fine.y_train.tolist(), fine.y_test.tolist()) == ([99, 0, 7, 0], [99, 0, 7, 1])
    assert coarse.y_test.tolist() == [19, 0, 3, 4]
    assert (len(fine.labels), fine.labels[7], len(coarse.labels), coarse.labels[19]) == (100, "fine7", 20, "coarse19")
    np.testing.assert_array_equal(fine.x_test, pixels(4, seed=1).reshape(4, 3, 32, 32) / np.float32(255))


@pytest.mark.parametrize("names", [{}, [], {"fine_label_names": [1] * 100}, {"fine_label_names": "x" * 100}])
def test_names_in_a_pickle_are_checked(tmp_path: Path, names: Any) -> None:
    write_hundred(tmp_path, "python")
    (tmp_path / "meta").write_bytes(pickle.dumps(names, 2))
    with pytest.raises(UserError, match="meta is damaged: it has no list of names 'fine_label_names'"):
        CIFAR100(path=str(tmp_path)).load()


def test_names_of_cifar_100_are_checked(tmp_path: Path) -> None:
    write_hundred(tmp_path, "binary")
    (tmp_path / "fine_label_names.txt").write_text("apple\n")
    with pytest.raises(UserError, match="it names 1 classes, expected 100"):
        CIFAR100(path=str(tmp_path)).load()
