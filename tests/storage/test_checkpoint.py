import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.storage import checkpoint, store
from coterie.storage.checkpoint import load_checkpoint, save_checkpoint
from coterie.storage.files import write_atomically
from coterie.storage.store import PersonalStore

RUN = "f00d"


def trees(index: int) -> dict[str, Tree]:
    """Return trees that differ from round to round, so that a test can tell which were loaded."""
    return {
        "shared": {"w": torch.arange(6.0).reshape(2, 3) + index, "b": torch.full((3,), index, dtype=torch.float64)},
        "memory": {"t": torch.tensor(index, dtype=torch.int64)},
    }


def new_store() -> PersonalStore:
    return PersonalStore(lambda client: {}, 8, torch.device("cpu"))


def save(folder: Path, *indices: int) -> None:
    for index in indices:
        personal = new_store()
        personal[3] = {"h": torch.full((2,), float(index))}
        save_checkpoint(folder, index, trees(index), personal, RUN)


def load(folder: Path) -> tuple[int, dict[str, Tree]]:
    return load_checkpoint(folder, new_store(), RUN)


def assert_loads(folder: Path, index: int) -> None:
    personal = new_store()
    found, loaded = load_checkpoint(folder, personal, RUN)
    assert found == index
    assert personal[3]["h"].tolist() == [index, index]
    assert personal[2] == {}
    assert loaded.keys() == trees(index).keys()
    for name, tree in trees(index).items():
        assert loaded[name].keys() == tree.keys()
        for key, value in tree.items():
            assert loaded[name][key].dtype == value.dtype
            assert loaded[name][key].shape == value.shape
            assert torch.equal(loaded[name][key], value)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def own_segment(folder: Path, index: int) -> Path:
    """Return the segment that a checkpoint wrote."""
    manifest = json.loads((folder / f"round-{index:06d}" / "manifest.json").read_text())
    return folder / "personal" / f"{manifest['personal'][-1]}.safetensors"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "coterie" and record.levelno == logging.WARNING
    ]


def test_what_was_saved_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path / "checkpoint", 5)
    assert_loads(tmp_path / "checkpoint", 5)
    assert not warnings(caplog)


def test_slices_and_transposes_are_saved_as_they_look(tmp_path: Path) -> None:
    base = torch.arange(6.0).reshape(2, 3)
    tree = {"row": base[1], "transposed": base.clone().T, "learned": torch.ones(2, requires_grad=True)}
    save_checkpoint(tmp_path, 1, {"shared": tree}, new_store(), RUN)
    _, loaded = load(tmp_path)
    assert loaded["shared"]["row"].tolist() == [3, 4, 5]
    assert loaded["shared"]["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert loaded["shared"]["learned"].tolist() == [1, 1]


def test_two_names_may_share_a_tensor(tmp_path: Path) -> None:
    same = torch.arange(3.0)
    save_checkpoint(tmp_path, 1, {"shared": {"one": same, "two": same}}, new_store(), RUN)
    _, loaded = load(tmp_path)
    assert loaded["shared"]["one"].tolist() == loaded["shared"]["two"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("exists", [True, False])
def test_where_there_is_none_the_run_starts_at_round_0(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "checkpoint"
    if exists:
        folder.mkdir()
    assert load(folder) == (0, {})


def test_the_last_two_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, 0, 5, 10, 100)
    assert names(tmp_path) == ["personal", "round-000010", "round-000100"]
    assert {*(tmp_path / "personal").iterdir()} == {own_segment(tmp_path, 10), own_segment(tmp_path, 100)}
    assert_loads(tmp_path, 100)


def test_a_checkpoint_writes_what_is_new_and_leaves_what_is_there(tmp_path: Path) -> None:
    personal = new_store()
    personal[3] = {"h": torch.ones(2)}
    save_checkpoint(tmp_path, 5, {}, personal, RUN)
    first = own_segment(tmp_path, 5)
    before = first.stat()
    personal[4] = {"h": torch.zeros(2)}
    save_checkpoint(tmp_path, 10, {}, personal, RUN)
    second = own_segment(tmp_path, 10)
    assert {*(tmp_path / "personal").iterdir()} == {first, second}
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert load_file(second)["0/"].tolist() == [4]


def test_rounds_are_ordered_as_numbers(tmp_path: Path) -> None:
    save(tmp_path, 999_990, 999_999, 1_000_000)
    assert_loads(tmp_path, 1_000_000)


def test_a_round_saved_again_replaces_itself(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, {"shared": {"old": torch.ones(1)}, "extra": {}}, new_store(), RUN)
    save(tmp_path, 5)
    assert names(tmp_path) == ["personal", "round-000005"]
    assert_loads(tmp_path, 5)
    assert not (tmp_path / "round-000005" / "extra.safetensors").exists()


@pytest.mark.parametrize("file", ["shared.safetensors", "memory.safetensors", "manifest.json"])
@pytest.mark.parametrize("place", [0, 8, -1])
def test_a_flipped_bit_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, place: int
) -> None:
    save(tmp_path, 5, 10)
    flip(tmp_path / "round-000010" / file, place)
    assert_loads(tmp_path, 5)
    (message,) = warnings(caplog)
    assert "round-000010" in message
    assert file in message


@pytest.mark.parametrize("file", ["shared.safetensors", "manifest.json"])
@pytest.mark.parametrize("length", [0, 10])
def test_a_truncated_file_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str, length: int
) -> None:
    save(tmp_path, 5, 10)
    path = tmp_path / "round-000010" / file
    path.write_bytes(path.read_bytes()[:length])
    assert_loads(tmp_path, 5)
    assert ["round-000010" in message for message in warnings(caplog)] == [True]


@pytest.mark.parametrize("file", ["shared.safetensors", "manifest.json"])
def test_a_missing_file_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    save(tmp_path, 5, 10)
    (tmp_path / "round-000010" / file).unlink()
    assert_loads(tmp_path, 5)
    assert ["round-000010" in message for message in warnings(caplog)] == [True]


def test_where_all_are_damaged_each_is_reported_and_nothing_is_started_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 5, 10)
    for path in tmp_path.glob("round-*"):
        flip(path / "shared.safetensors", -1)
    with pytest.raises(UserError, match=r"all checkpoints in .* are damaged"):
        load(tmp_path)
    assert [message.split(" is damaged")[0][-12:] for message in warnings(caplog)] == ["round-000010", "round-000005"]


def test_a_checkpoint_of_another_run_is_told_and_the_one_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "mine", 5)
    save_checkpoint(tmp_path / "other", 10, trees(10), new_store(), "another run")
    (tmp_path / "other" / "round-000010").rename(tmp_path / "mine" / "round-000010")
    assert_loads(tmp_path / "mine", 5)
    (message,) = warnings(caplog)
    assert "round-000010" in message
    assert "belongs to another run" in message
    checkpoint.tidy(tmp_path / "mine", 5, RUN)
    assert names(tmp_path / "mine") == ["personal", "round-000005"]


def test_checkpoints_of_another_run_only_are_refused(tmp_path: Path) -> None:
    save(tmp_path, 5, 10)
    with pytest.raises(UserError, match=r"all checkpoints in .* belong to another run; restore them"):
        load_checkpoint(tmp_path, new_store(), "another run")


def test_a_checkpoint_under_the_name_of_another_round_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, 5, 10)
    (tmp_path / "round-000005").rename(tmp_path / "round-000012")
    assert_loads(tmp_path, 10)
    (message,) = warnings(caplog)
    assert "round-000012" in message
    assert "it is the checkpoint of round 5" in message


def test_equal_runs_have_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FAN", 3)
    for name in ("one", "two"):
        personal = new_store()
        for index in range(1, 9):
            for client in (index % 8, 3 * index % 8, index % 3):
                personal[client] = {"h": torch.full((client % 2 + 1,), float(index))}
            save_checkpoint(tmp_path / name, index, trees(index), personal, RUN)
    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert files == {path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*") if path.is_file()}
    assert names(tmp_path / "one" / "round-000008") == [
        "manifest.json",
        "manifest.sha256",
        "memory.safetensors",
        "shared.safetensors",
    ]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_what_an_interrupted_save_left_is_ignored_and_replaced(tmp_path: Path) -> None:
    save(tmp_path, 5)
    leftover = tmp_path / ".round-000010.partial"
    leftover.mkdir()
    (leftover / "stray.safetensors").write_bytes(b"half")
    assert_loads(tmp_path, 5)
    (tmp_path / ".round-000007.partial").mkdir()
    (tmp_path / "personal" / ".partial").write_bytes(b"half")
    (tmp_path / "personal" / f"{'0' * 64}.safetensors").write_bytes(b"of a checkpoint that was never finished")
    assert_loads(tmp_path, 5)
    save(tmp_path, 10)
    assert names(tmp_path) == ["personal", "round-000005", "round-000010"]
    assert {*(tmp_path / "personal").iterdir()} == {own_segment(tmp_path, 5), own_segment(tmp_path, 10)}
    assert "stray.safetensors" not in names(tmp_path / "round-000010")
    assert_loads(tmp_path, 10)


def test_a_save_that_fails_leaves_the_checkpoints_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 5, 10)

    def full(path: Path, chunks: list[bytes], mode: int) -> str:
        if path.name == "manifest.json":
            raise OSError("no space left on device")
        path.write_bytes(b"".join(chunks))
        return "0" * 64

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_durably", full)
        with pytest.raises(OSError, match="no space"):
            save(tmp_path, 15)
    assert_loads(tmp_path, 10)
    save(tmp_path, 15)
    assert_loads(tmp_path, 15)
    assert names(tmp_path) == ["personal", "round-000010", "round-000015"]


def test_the_manifest_says_the_round_and_the_run(tmp_path: Path) -> None:
    save(tmp_path, 5)
    manifest = json.loads((tmp_path / "round-000005" / "manifest.json").read_text())
    assert manifest["round"] == 5
    assert manifest["run"] == RUN
    assert all(len(digest) == 64 for digest in manifest["sha256"].values())


def test_a_file_is_written_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old and longer")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["summary.json"]


def test_a_file_stays_as_it_was_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError("disk failure")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="disk failure"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    write_atomically(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert names(tmp_path) == ["summary.json"]
