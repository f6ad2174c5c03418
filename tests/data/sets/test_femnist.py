import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.sets.femnist import FEMNIST
from coterie.errors import UserError


def leaf(users: dict[str, list[int]], shade: float = 0.5) -> dict[str, Any]:
    """Write a file as LEAF's preprocess.sh does."""
    return {
        "users": list(users),
        "num_samples": [len(classes) for classes in users.values()],
        "user_data": {user: {"x": [[shade] * 784 for _ in classes], "y": classes} for user, classes in users.items()},
    }


def write(folder: Path, part: str, number: int, tree: Any) -> Path:
    (folder / part).mkdir(exist_ok=True)
    path = folder / part / f"all_data_{number}_niid_0_keep_0_{part}_9.json"
    path.write_text(json.dumps(tree))
    return path


def test_writers_are_groups_across_files(tmp_path: Path) -> None:
    write(tmp_path, "train", 0, leaf({"f0000_14": [0, 61], "f0001_41": [10]}, shade=1.0))
    write(tmp_path, "train", 1, leaf({"f0002_07": [36, 36]}))
    write(tmp_path, "test", 0, leaf({"f0001_41": [11], "f0000_14": [0]}))
    data = FEMNIST(path=str(tmp_path)).load()
    assert data.groups is not None
    assert data.groups.names == ("f0000_14", "f0001_41", "f0002_07")
    assert data.groups.train.tolist() == [0, 0, 1, 2, 2]
    assert data.groups.test.tolist() == [1, 0]
    assert (data.x_train.shape, data.x_train.dtype) == ((5, 28, 28), np.float32)
    assert data.x_train[:, 0, 0].tolist() == [1, 1, 1, 0.5, 0.5]
    assert [data.labels[label] for label in data.y_train] == ["0", "z", "A", "a", "a"]
    assert data.y_test.tolist() == [11, 0]


def test_files_may_be_gzipped(tmp_path: Path) -> None:
    for part in ("train", "test"):
        path = write(tmp_path, part, 0, leaf({"f1": [1]}))
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert FEMNIST(path=str(tmp_path)).load().y_test.tolist() == [1]


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        ([], "not LEAF's JSON"),
        ({"users": ["a"], "user_data": {}}, "not LEAF's JSON"),
        ({"users": [], "user_data": {}}, "has no users"),
        ({"users": ["a"], "user_data": {"a": {"x": [[1.0] * 783], "y": [0]}}}, "user 'a' does not have 784 pixels"),
        ({"users": ["a"], "user_data": {"a": {"x": [[1.0] * 784], "y": [0, 1]}}}, "in 'x' for each class in 'y'"),
        ({"users": ["a"], "user_data": {"a": {"x": [[1.0] * 784], "y": [0.5]}}}, r"class outside 0\.\.61"),
        ({"users": ["a", "a"], "user_data": leaf({"a": [1]})["user_data"]}, "it lists a user twice"),
        ({"users": [["a"]], "user_data": {}}, "not LEAF's JSON"),
        (leaf({"a": [62]}), r"class outside 0\.\.61"),
        (leaf({"a": [6]}, shade=float("nan")), "pixel that is not a number"),
    ],
)
def test_damage_is_told_with_file_and_user(tmp_path: Path, tree: Any, reason: str) -> None:
    write(tmp_path, "test", 0, leaf({"a": [1]}))
    path = write(tmp_path, "train", 0, tree)
    with pytest.raises(UserError, match=reason) as caught:
        FEMNIST(path=str(tmp_path)).load()
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "text", ['{"users": ["a"], "user_data": {"a": 1, "a": 2}}', "[" * 100_000, '{"users": [%s]}' % ("9" * 5000)]
)
def test_text_that_no_script_writes_is_told(tmp_path: Path, text: str) -> None:
    write(tmp_path, "test", 0, leaf({"a": [1]}))
    write(tmp_path, "train", 0, {}).write_text(text)
    with pytest.raises(UserError, match="is damaged: it is not LEAF's JSON"):
        FEMNIST(path=str(tmp_path)).load()


def test_a_missing_set_says_how_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"TalwalkarLab/leaf .*preprocess\.sh") as caught:
        FEMNIST(path=str(tmp_path)).load()
    assert str(tmp_path) in str(caught.value)
