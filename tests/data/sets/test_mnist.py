import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from coterie.data.examples import Examples
from coterie.data.sets.fashion_mnist import FashionMNIST
from coterie.data.sets.mnist import MNIST
from coterie.errors import UserError


def published(dataset: type[MNIST] | type[FashionMNIST], name: str) -> Examples:
    root = os.environ.get("COTERIE_DATA")
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"set COTERIE_DATA to a folder that holds {name}/ with its four IDX files")
    return dataset().load()


@pytest.mark.parametrize(
    ("dataset", "name", "mean", "std", "train_counts", "test_counts"),
    [
        pytest.param(
            MNIST,
            "mnist",
            0.1307,
            0.3081,
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
            id="mnist",
        ),
        pytest.param(FashionMNIST, "fashion-mnist", 0.2860, 0.3530, [6000] * 10, [1000] * 10, id="fashion-mnist"),
    ],
)
def test_published_facts(
    dataset: type[MNIST] | type[FashionMNIST],
    name: str,
    mean: float,
    std: float,
    train_counts: list[int],
    test_counts: list[int],
) -> None:
    data = published(dataset, name)
    assert data.x_train.shape == (60000, 28, 28)
    assert data.x_test.shape == (10000, 28, 28)
    assert data.x_train.dtype == data.x_test.dtype == np.float32
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert data.x_train.mean(dtype=np.float64) == pytest.approx(mean, abs=5e-5)
    assert data.x_train.std(dtype=np.float64) == pytest.approx(std, abs=5e-5)
    assert np.bincount(data.y_train).tolist() == train_counts
    assert np.bincount(data.y_test).tolist() == test_counts


def write_toy(folder: Path) -> None:
    for split, count in (("train", 12), ("t10k", 7)):
        images = np.full((count, 28, 28), 51 if split == "train" else 255, dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        header = struct.pack(">HBB3I", 0, 8, 3, *images.shape)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        content = gzip.compress(struct.pack(">HBBI", 0, 8, 1, count) + labels.tobytes())
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(content)


@pytest.mark.parametrize("dataset", [MNIST, FashionMNIST])
def test_each_file_goes_to_its_place(tmp_path: Path, dataset: type[MNIST] | type[FashionMNIST]) -> None:
    write_toy(tmp_path)
    data = dataset(path=str(tmp_path)).load()
    assert data.x_train.shape == (12, 28, 28)
    assert data.x_test.shape == (7, 28, 28)
    assert (data.x_train == np.float32(0.2)).all()
    assert (data.x_test == 1).all()
    assert data.y_train.tolist() == [*range(10), 0, 1]
    assert data.y_test.tolist() == [*range(7)]


def test_labels_are_named(tmp_path: Path) -> None:
    write_toy(tmp_path)
    assert MNIST(path=str(tmp_path)).load().labels == tuple("0123456789")
    articles = FashionMNIST(path=str(tmp_path)).load().labels
    assert len(articles) == 10
    assert (articles[0], articles[5], articles[9]) == ("T-shirt/top", "Sandal", "Ankle boot")


@pytest.mark.parametrize(
    ("dataset", "home_page"),
    [
        (MNIST, "https://yann.lecun.com/exdb/mnist"),
        (FashionMNIST, "https://github.com/zalandoresearch/fashion-mnist"),
    ],
)
def test_missing_files_point_to_the_home_page(
    tmp_path: Path, dataset: type[MNIST] | type[FashionMNIST], home_page: str
) -> None:
    with pytest.raises(UserError, match="missing train-images-idx3-ubyte, train-labels") as caught:
        dataset(path=str(tmp_path)).load()
    assert home_page in str(caught.value)
