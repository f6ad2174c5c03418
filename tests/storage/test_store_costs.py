"""The memory and disk space that the store needs, and how much a checkpoint writes."""

import gc
import multiprocessing
import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch

from coterie.storage import segments, store
from coterie.storage.store import PersonalStore

MEGABYTE = 2**20
on_linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc says what memory is used for")


def new_store(num_clients: int = 100) -> PersonalStore:
    return PersonalStore(lambda client: {}, num_clients, torch.device("cpu"))


def checkpoint(kept: PersonalStore, folder: Path) -> None:
    kept.adopt(kept.write(folder))


def sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.glob("*")}


def memory(kind: str) -> int:
    """Return the memory of this process in bytes: its own (RssAnon), or with mapped files (VmRSS)."""
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


def afresh(function: Callable[..., None], *arguments: object) -> None:
    """Call a function in a process whose allocator returns freed memory. A run tells the allocator to keep it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(function, *arguments).result()


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_a_checkpoint_writes_what_changed(tmp_path: Path) -> None:
    kept = new_store(10_000)
    for client in range(10_000):
        kept[client] = {"w": torch.zeros(2, 50)}
    checkpoint(kept, tmp_path)
    before = sizes(tmp_path)
    for client in range(0, 10_000, 1000):
        kept[client] = {"w": torch.ones(2, 50)}
    checkpoint(kept, tmp_path)
    after = sizes(tmp_path)
    assert sum(before.values()) < 10_000 * (400 + 8) + 1000
    (added,) = after.keys() - before.keys()
    assert after[added] < 10 * (400 + 8) + 1000
    assert before.items() <= after.items()
    assert kept[1000]["w"].sum() == 100
    assert kept[1001]["w"].sum() == 0
    checkpoint(kept, tmp_path)
    assert sizes(tmp_path) == after


def test_few_segments_and_little_copying_however_many_checkpoints(tmp_path: Path, no_sync: None) -> None:
    """Two clients of 600 in each of 1500 checkpoints: every byte is written a few times, not hundreds of times."""
    kept, model = new_store(600), {}
    generator = torch.Generator().manual_seed(0)
    written = most = 0
    for index in range(1500):
        for client in torch.randperm(600, generator=generator)[:2].tolist():
            model[client] = index
            kept[client] = {"w": torch.full((25,), float(index))}
        layout = kept.write(tmp_path)
        kept.adopt(layout)
        written += layout.segments[-1].num_bytes
        most = max(most, len(layout.segments))
        live = len(model) * 108
        assert live <= sum(segment.num_bytes for segment in layout.segments) <= 2 * live
    assert most <= 3 * store.FAN
    assert written < 5 * 1500 * 2 * 108
    again = new_store(600)
    again.restore(layout.segments)
    for client, stamp in model.items():
        assert (kept[client]["w"] == stamp).all()
        assert (again[client]["w"] == stamp).all()


@on_linux
def test_a_checkpoint_frees_the_memory(tmp_path: Path) -> None:
    afresh(_frees, tmp_path)


def _frees(tmp_path: Path) -> None:
    kept = new_store()
    empty = memory("RssAnon")
    for client in range(2):
        kept[client] = {"w": torch.ones(10 * MEGABYTE)}
    assert memory("RssAnon") > empty + 75 * MEGABYTE
    checkpoint(kept, tmp_path)
    assert memory("RssAnon") < empty + 8 * MEGABYTE


@on_linux
def test_a_row_does_not_hold_the_stack_that_it_came_from() -> None:
    afresh(_lets_go)


def _lets_go() -> None:
    kept = new_store()
    empty = memory("RssAnon")
    kept[0] = {"w": torch.ones(1000, 10_000)[7]}
    assert memory("RssAnon") < empty + 8 * MEGABYTE
    assert kept[0]["w"].sum() == 10_000


@on_linux
def test_reading_every_client_takes_little_memory(tmp_path: Path) -> None:
    kept = new_store(20_000)
    for client in range(20_000):
        kept[client] = {"w": torch.full((1024,), float(client))}
    checkpoint(kept, tmp_path)
    before = memory("VmRSS")
    assert all(kept[client]["w"][1023] == client for client in range(20_000))
    assert memory("VmRSS") < before + 16 * MEGABYTE


def test_merging_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "CHUNK", 2**16)
    kept = new_store()
    for client in range(100):
        kept[client] = {"w": torch.full((50_000,), float(client))}
    checkpoint(kept, tmp_path)
    for client in range(51):
        kept[client] = {"w": torch.zeros(1)}
    tracemalloc.start()
    try:
        checkpoint(kept, tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(kept.write(tmp_path).segments) == 1
    assert peak < MEGABYTE
    assert all(kept[client]["w"][-1] == (client if client > 50 else 0) for client in range(100))


def test_a_million_clients_take_some_megabytes(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        kept = new_store(1_000_000)
        for client in range(0, 1_000_000, 10_000):
            kept[client] = {"w": torch.ones(3)}
        checkpoint(kept, tmp_path)
        kept[5] = {"w": torch.ones(3)}
        checkpoint(kept, tmp_path)
        now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now < 10 * MEGABYTE
    assert peak < 50 * MEGABYTE
    assert kept[990_000]["w"].tolist() == [1, 1, 1]
