"""The store behaves like a dict, wherever the states are. Its costs are tested in test_store_costs."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from coterie.core.tree import Tree
from coterie.storage import segments, store
from coterie.storage.checkpoint import load_checkpoint, save_checkpoint
from coterie.storage.store import PersonalStore

CPU = torch.device("cpu")


def born(client: int) -> Tree:
    return {"born": torch.tensor([client])}


def nothing(client: int) -> Tree:
    return {}


def new_store(num_clients: int = 100, create: Callable[[int], Tree] = born) -> PersonalStore:
    return PersonalStore(create, num_clients, CPU)


def checkpoint(kept: PersonalStore, folder: Path) -> None:
    kept.adopt(kept.write(folder))


def reopened(kept: PersonalStore, folder: Path) -> PersonalStore:
    """Return the store as a new process finds it, if a checkpoint lists the current segments."""
    again = new_store()
    again.restore([segments.Segment.checked(folder / s.path.name) for s in kept.write(folder).segments])
    return again


def assert_same(found: Tree, wanted: Tree) -> None:
    """Assert that bits, types, shapes and the order of names are the same."""
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert found[name].shape == value.shape
        assert found[name].is_contiguous()
        assert raw(found[name]) == raw(value)


def raw(value: torch.Tensor) -> bytes:
    return value.reshape(-1).view(torch.uint8).numpy().tobytes()


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("*")}


TREES: dict[int, Tree] = {
    3: {"head.weight": torch.arange(6.0).reshape(2, 3), "head.bias": torch.tensor([0.5, -0.0])},
    0: {"head.weight": torch.full((2, 3), float("nan")), "head.bias": torch.tensor([1e-45, 7.0])},
    7: {"head.weight": torch.arange(9.0).reshape(3, 3), "head.bias": torch.ones(3)},
    8: {"head.bias": torch.ones(3), "head.weight": torch.zeros(3, 3)},
    2: {"flag": torch.tensor(True), "count": torch.tensor(2**40), "h": torch.tensor([1.5], dtype=torch.bfloat16)},
    4: {"a/b": torch.zeros(0, 3), "x": torch.tensor([[1, 2, 3]], dtype=torch.int8), "y": torch.ones(1).double()},
    9: {"x": torch.ones(2, 3, 4)},
    1: {},
}


@pytest.mark.parametrize("where", ["in memory", "on the disk", "in another process"])
def test_what_was_put_comes_back(tmp_path: Path, where: str) -> None:
    kept = new_store()
    for client, tree in TREES.items():
        kept[client] = tree
    if where != "in memory":
        checkpoint(kept, tmp_path)
    if where == "in another process":
        kept = reopened(kept, tmp_path)
    for client, tree in TREES.items():
        assert_same(kept[client], tree)
    assert_same(kept[5], born(5))


def test_the_last_that_was_put_counts(tmp_path: Path) -> None:
    kept = new_store()
    for value in (1.0, 2.0, 3.0):
        for client in (1, 2):
            kept[client] = {"w": torch.full((4,), value)}
        checkpoint(kept, tmp_path)
    kept[1] = {"w": torch.full((4,), 4.0)}
    assert (kept[1]["w"][0], kept[2]["w"][0]) == (4, 3)
    checkpoint(kept, tmp_path)
    for each in (kept, reopened(kept, tmp_path)):
        assert (each[1]["w"][0], each[2]["w"][0]) == (4, 3)


def test_a_segment_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    kept = new_store()
    for client, tree in TREES.items():
        kept[client] = tree
    checkpoint(kept, tmp_path)
    (path,) = tmp_path.iterdir()
    columns = load_file(path)
    assert columns["0/"].tolist() == [0, 3]
    assert torch.equal(columns["0/head.bias"][1], TREES[3]["head.bias"])
    assert columns["1/"].tolist() == [1]
    assert columns["2/count"].item() == 2**40


def test_a_client_is_made_when_it_is_asked_for() -> None:
    made: list[int] = []

    def create(client: int) -> Tree:
        made.append(client)
        return born(client)

    kept = new_store(create=create)
    kept[1] = {"w": torch.ones(2)}
    assert_same(kept[1], {"w": torch.ones(2)})
    assert made == []
    assert_same(kept[2], born(2))
    assert made[-1] == 2
    assert 1 not in made


@pytest.mark.parametrize("on_disk", [False, True])
def test_nothing_is_shared_with_what_was_put_or_given_out(tmp_path: Path, on_disk: bool) -> None:
    stacked = torch.arange(8.0).reshape(2, 4).requires_grad_()
    kept = new_store()
    kept[0] = {"w": stacked[1]}
    if on_disk:
        checkpoint(kept, tmp_path)
    with torch.no_grad():
        stacked.zero_()
    kept[0]["w"].zero_()
    assert kept[0]["w"].tolist() == [4, 5, 6, 7]
    assert not kept[0]["w"].requires_grad
    assert kept[0]["w"].untyped_storage().nbytes() == 16


def test_a_transposed_tensor_is_kept_as_it_looks(tmp_path: Path) -> None:
    value = torch.arange(6.0).reshape(2, 3).T
    kept = new_store()
    kept[0] = {"w": value}
    assert_same(kept[0], {"w": value})
    checkpoint(kept, tmp_path)
    assert_same(kept[0], {"w": value})


class TestWithoutPersonalState:
    def test_nothing_is_kept_or_written_or_made(self, tmp_path: Path) -> None:
        made: list[int] = []
        kept = new_store(create=lambda client: made.append(client) or {})
        for client in range(50):
            kept[client] = {}
        checkpoint(kept, tmp_path)
        assert sizes(tmp_path) == {}
        assert len(made) == 1
        assert kept[1] == {}

    def test_a_state_that_became_empty_is_not_made_anew(self, tmp_path: Path) -> None:
        kept = new_store()
        kept[1] = {}
        checkpoint(kept, tmp_path)
        assert kept[1] == {}
        assert reopened(kept, tmp_path)[1] == {}

    def test_an_older_state_does_not_come_back(self, tmp_path: Path) -> None:
        kept = new_store(create=nothing)
        for client in range(10):
            kept[client] = {"w": torch.ones(3)}
        checkpoint(kept, tmp_path)
        kept[1] = {}
        checkpoint(kept, tmp_path)
        assert kept[1] == {}
        assert reopened(kept, tmp_path)[1] == {}


def test_the_store_goes_on_as_before_until_the_checkpoint_stands(tmp_path: Path) -> None:
    """Also if the failed checkpoint moved states, which happens when most of a segment is outdated."""
    kept = new_store()
    for client in range(10):
        kept[client] = {"w": torch.tensor(client)}
    checkpoint(kept, tmp_path)
    for client in range(4, 10):
        kept[client] = {"w": torch.tensor(client + 100)}
    assert len(kept.write(tmp_path / "lost").segments) == 1
    shutil.rmtree(tmp_path / "lost")
    assert [kept[client]["w"].item() for client in range(10)] == [0, 1, 2, 3, 104, 105, 106, 107, 108, 109]
    checkpoint(kept, tmp_path)
    again = reopened(kept, tmp_path)
    assert [again[client]["w"].item() for client in range(10)] == [0, 1, 2, 3, 104, 105, 106, 107, 108, 109]


def test_states_can_be_read_when_the_folder_is_gone(tmp_path: Path) -> None:
    kept = new_store()
    for client, tree in TREES.items():
        kept[client] = tree
    checkpoint(kept, tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    for client, tree in TREES.items():
        assert_same(kept[client], tree)


def test_a_file_cut_short_under_a_run_is_not_read_as_something_else(tmp_path: Path) -> None:
    kept = new_store()
    kept[1] = {"w": torch.ones(2)}
    checkpoint(kept, tmp_path)
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(OSError, match="truncated"):
        kept[1]


COHORTS = st.lists(st.integers(0, 7), min_size=1, max_size=5)
PUT = st.tuples(st.just("put"), COHORTS, st.sampled_from(["head", "head", "wide", "scalar", "empty"]))
OPERATIONS = st.one_of(PUT, PUT, st.just(("checkpoint",)), st.just(("checkpoint",)), st.just(("resume",)))


def tree_of(kind: str, stamp: int) -> Tree:
    """Return a tree that is different at every put, so that a test can tell older states from newer ones."""
    match kind:
        case "head":
            return {"w": torch.full((2, 3), float(stamp)), "b": torch.tensor([stamp], dtype=torch.int64)}
        case "wide":
            return {"w": torch.full((4, 3), float(stamp)), "b": torch.tensor([stamp], dtype=torch.int64)}
        case "scalar":
            return {"n": torch.tensor(stamp)}
    return {}


@settings(max_examples=100, deadline=None)
@given(st.lists(OPERATIONS, min_size=10, max_size=50), st.sampled_from([2, 3, 16]), st.sampled_from([1, 40]))
def test_it_is_a_dict_that_forgets_what_came_after_the_last_checkpoint(operations, fan, chunk):
    with (
        tempfile.TemporaryDirectory() as name,
        patch.object(store, "FAN", fan),
        patch.object(segments, "CHUNK", chunk),
        patch.object(os, "fsync", lambda descriptor: None),
    ):
        folder = Path(name)
        kept, model, saved = new_store(8), {}, {}
        index = 0
        for step, (operation, *arguments) in enumerate(operations):
            if operation == "put":
                cohort, kind = arguments
                for place, client in enumerate(cohort):
                    model[client] = tree_of(kind, 10 * step + place)
                    kept[client] = model[client]
            elif operation == "checkpoint":
                index += 1
                save_checkpoint(folder, index, {"shared": {}}, kept, "a run")
                saved = dict(model)
                assert_disk_is_bounded(folder, index, model)
            else:
                kept, model = new_store(8), dict(saved)
                assert load_checkpoint(folder, kept, "a run")[0] == index
            for client in range(8):
                assert_same(kept[client], model.get(client, born(client)))


def assert_disk_is_bounded(folder: Path, index: int, model: dict[int, Tree]) -> None:
    def payload(name: str) -> int:
        path = folder / "personal" / f"{name}.safetensors"
        content = path.read_bytes()
        return len(content) - 8 - int.from_bytes(content[:8], "little")

    def listed(index: int) -> list[str]:
        file = folder / f"round-{index:06d}" / "manifest.json"
        return json.loads(file.read_text())["personal"] if file.exists() else []

    live = sum(8 + sum(value.nbytes for value in tree.values()) for tree in model.values())
    assert live <= sum(map(payload, listed(index))) <= 2 * live
    files = {path.stem for path in (folder / "personal").glob("*")}
    assert files == {*listed(index), *listed(index - 1)}
