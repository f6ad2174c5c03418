"""Checkpoints that are cut short, by a killed process or a lost power supply, and segments that are damaged."""

import builtins
import io
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.errors import UserError
from coterie.storage import store
from coterie.storage.checkpoint import load_checkpoint, save_checkpoint
from coterie.storage.store import PersonalStore


class Killed(BaseException):
    """A kill. It is not an Exception, because nothing can catch SIGKILL."""


class Disk:
    """A disk that counts operations on files, kills at the n-th of them, and knows what was not synced by then."""

    def __init__(self, patch: pytest.MonkeyPatch, kill_at: int | None) -> None:
        self.count = 0
        self._kill_at = kill_at
        self._unsynced_files: set[int] = set()
        self._unsynced_renames: list[tuple[Path, Path]] = []
        for name in ("mkdir", "unlink", "rmdir", "open"):
            patch.setattr(os, name, self._counting(getattr(os, name)))
        for name in ("rename", "replace"):
            patch.setattr(os, name, self._counting(getattr(os, name), self._renamed))
        patch.setattr(os, "fsync", self._counting(self._sync))
        self._open = io.open
        patch.setattr(io, "open", self._opening)
        patch.setattr(builtins, "open", self._opening)

    def lose_power(self, folder: Path) -> None:
        """Lose half of each file that was not synced, and each new name whose folder was not synced."""
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._unsynced_files:
                os.truncate(path, path.stat().st_size // 2)
        for old, new in reversed(self._unsynced_renames):
            new.rename(old)

    def _tick(self) -> None:
        self.count += 1
        if self.count == self._kill_at:
            raise Killed

    def _counting(
        self, call: Callable[..., Any], then: Callable[..., None] = lambda *arguments: None
    ) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self._tick()
            result = call(*arguments, **options)
            then(*arguments)
            return result

        return counted

    def _opening(self, path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if "w" not in mode:
            return self._open(path, mode, *arguments, **options)
        self._tick()
        file = self._open(path, mode, *arguments, **options)
        self._unsynced_files.add(os.fstat(file.fileno()).st_ino)
        return file

    def _renamed(self, old: Path, new: Path) -> None:
        self._unsynced_renames.append((Path(old), Path(new)))

    def _sync(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        self._unsynced_files.discard(inode)
        self._unsynced_renames = [
            (old, new) for old, new in self._unsynced_renames if new.parent.stat().st_ino != inode
        ]


def new_store() -> PersonalStore:
    return PersonalStore(lambda client: {}, 8, torch.device("cpu"))


def contents(personal: PersonalStore) -> list[dict[str, list[float]]]:
    return [{name: value.tolist() for name, value in personal[client].items()} for client in range(8)]


def put(personal: PersonalStore, index: int) -> None:
    for client in (index % 8, 0, index % 3):
        personal[client] = {"h": torch.full((client % 2 + 1,), float(index))}


def save(folder: Path, index: int, personal: PersonalStore) -> None:
    save_checkpoint(folder, index, {"shared": {"w": torch.tensor(index)}}, personal, "a run")


def load(folder: Path, states: list[Any]) -> tuple[int, PersonalStore]:
    """Return the round and the states of the checkpoint that is found, after checking that it is whole."""
    personal = new_store()
    index, trees = load_checkpoint(folder, personal, "a run")
    assert contents(personal) == states[index]
    assert index == 0 or trees["shared"]["w"] == index
    return index, personal


def interrupted(folder: Path, index: int, personal: PersonalStore, kill_at: int, lose_power: bool) -> int:
    """Save a checkpoint, or be killed while saving. Returns the number of operations until then."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, kill_at)
        with suppress(Killed):
            save(folder, index, personal)
    if lose_power:
        disk.lose_power(folder)
    return disk.count


@pytest.mark.parametrize("index", [1, 5, 8])
@pytest.mark.parametrize("lose_power", [False, True])
def test_the_older_or_the_newer_checkpoint_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int, lose_power: bool
) -> None:
    monkeypatch.setattr(store, "FAN", 3)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    states, before, personal = [contents(new_store())], tmp_path / "before", new_store()
    before.mkdir()
    for i in range(1, index + 2):
        put(personal, i)
        states.append(contents(personal))
        if i < index:
            save(before, i, personal)

    found = []
    done = False
    while not done:
        folder, kill_at = tmp_path / f"killed-{len(found)}", len(found) + 1
        shutil.copytree(before, folder)
        _, personal = load(folder, states)
        put(personal, index)
        done = interrupted(folder, index, personal, kill_at, lose_power) < kill_at
        latest, personal = load(folder, states)
        found.append(latest)
        for i in range(latest + 1, index + 2):
            put(personal, i)
            save(folder, i, personal)
        assert load(folder, states)[0] == index + 1
        assert_no_litter(folder, index)
    assert len(found) > 15
    assert found == sorted(found)
    assert {*found} == {index - 1, index}


def assert_no_litter(folder: Path, index: int) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "personal",
        *(f"round-{i:06d}" for i in (index, index + 1)),
    ]
    manifests = "".join((path / "manifest.json").read_text() for path in folder.glob("round-*"))
    assert all(path.stem in manifests for path in (folder / "personal").iterdir())


def newest_segment(folder: Path, index: int) -> Path:
    manifest = json.loads((folder / f"round-{index:06d}" / "manifest.json").read_text())
    return folder / "personal" / f"{manifest['personal'][-1]}.safetensors"


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def three_saved(folder: Path) -> list[Any]:
    """Return the states at each of the checkpoints."""
    personal = new_store()
    states = [contents(personal)]
    for index in (1, 2, 3):
        put(personal, index)
        states.append(contents(personal))
        save(folder, index, personal)
    return states


@pytest.mark.parametrize(
    "damage",
    [lambda path: flip(path, 0), lambda path: flip(path, 8), lambda path: flip(path, -1), cut, Path.unlink],
    ids=["length", "header", "data", "cut", "missing"],
)
def test_a_damaged_segment_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    states = three_saved(tmp_path)
    path = newest_segment(tmp_path, 3)
    damage(path)
    index, personal = load(tmp_path, states)
    assert index == 2
    (record,) = caplog.records
    assert "round-000003 is damaged" in record.getMessage()
    assert path.name in record.getMessage()
    put(personal, 3)
    save(tmp_path, 3, personal)
    assert load(tmp_path, states)[0] == 3


def test_where_both_need_a_damaged_segment_nothing_is_started_over(tmp_path: Path) -> None:
    states = three_saved(tmp_path)
    _, personal = load(tmp_path, states)
    save(tmp_path, 4, personal)
    flip(newest_segment(tmp_path, 4), -1)
    with pytest.raises(UserError, match="are damaged"):
        load(tmp_path, states)


def test_what_could_not_be_resumed_from_makes_room_for_whole_checkpoints(tmp_path: Path) -> None:
    states = three_saved(tmp_path)
    (tmp_path / "round-000003").rename(tmp_path / "round-000009")
    flip(tmp_path / "round-000009" / "manifest.json", 8)
    _, personal = load(tmp_path, states)
    put(personal, 3)
    save(tmp_path, 3, personal)
    assert_no_litter(tmp_path, 2)
    flip(tmp_path / "round-000003" / "manifest.json", 8)
    assert load(tmp_path, states)[0] == 2


def test_a_damaged_older_checkpoint_does_not_stop_the_run(tmp_path: Path) -> None:
    states = three_saved(tmp_path)
    _, personal = load(tmp_path, states)
    flip(tmp_path / "round-000003" / "manifest.json", 8)
    for index in (4, 5):
        put(personal, index)
        states.append(contents(personal))
        save(tmp_path, index, personal)
    assert_no_litter(tmp_path, 4)
    assert load(tmp_path, states)[0] == 5


def test_a_segment_deleted_under_a_run_is_not_passed_over(tmp_path: Path) -> None:
    states = three_saved(tmp_path)
    _, personal = load(tmp_path, states)
    path = newest_segment(tmp_path, 3)
    path.unlink()
    personal[7] = {"h": torch.ones(1)}
    with pytest.raises(FileNotFoundError, match=path.name):
        save(tmp_path, 4, personal)
    assert not (tmp_path / "round-000004").exists()
