"""Files of two runs that are mixed up: each file says which run it belongs to."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.errors import UserError
from coterie.lab.papers.measured import figures_of
from coterie.storage.origin import read_origin

PARTS = {
    "recipe.toml": (["recipe.toml"], "announcement.json belongs to another run than recipe.toml"),
    "rounds.jsonl": (["rounds.jsonl"], "rounds.jsonl differs .*: line 1 was changed, the file belongs to another run"),
    "summary.json": (["summary.json", "clients.csv"], "summary.json belongs to another run"),
    "announcement.json": (
        ["announcement.json", "initial.safetensors", "clients.safetensors"],
        "announcement.json belongs to another run than recipe.toml. Restore it together with initial.safetensors",
    ),
    "checkpoint": (["checkpoint"], "all checkpoints in .*checkpoint are damaged or belong to another run"),
}
"""Files that are swapped in together, and what a reader is told."""


def train(out: Path, *, rounds: int = 2, data: int = 0, seed: int = 0, resume: bool = False) -> coterie.Run:
    rng = np.random.default_rng(data)
    federation = coterie.Federation.from_arrays({name: (rng.normal(size=(6, 4)), np.arange(6) % 2) for name in "abc"})
    keys = {"rounds": rounds, "seed": seed, "checkpoint_every": 1, "progress": False}
    return coterie.train(federation, out=out, resume=resume, **keys)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run, one with another seed, and one with the same recipe on other data."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "run")
    train(folder / "seed", seed=1)
    train(folder / "data", data=1)
    return folder


def mixed(runs: Path, other: str, part: str, out: Path) -> Path:
    """Return a copy of the run with a part of another run."""
    shutil.copytree(runs / "run", out)
    for name in PARTS[part][0]:
        shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
        (shutil.copytree if (runs / other / name).is_dir() else shutil.copy)(runs / other / name, out / name)
    return out


@pytest.mark.parametrize("other", ["seed", "data"])
@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_another_run_is_not_loaded(runs: Path, tmp_path: Path, part: str, other: str) -> None:
    folder = mixed(runs, other, part, tmp_path / "run")
    with pytest.raises(UserError, match=PARTS[part][1]):
        coterie.load(folder)
    if part in ("recipe.toml", "rounds.jsonl", "summary.json"):
        with pytest.raises(UserError, match="belongs to another run"):
            figures_of(folder, "as_is")


@pytest.mark.parametrize("other", ["seed", "data"])
@pytest.mark.parametrize("part", ["rounds.jsonl", "announcement.json", "checkpoint"])
def test_a_run_does_not_resume_from_a_part_of_another_run(runs: Path, tmp_path: Path, part: str, other: str) -> None:
    folder = mixed(runs, other, part, tmp_path / "run")
    with pytest.raises(UserError, match=PARTS[part][1]):
        train(folder, rounds=3, resume=True)


def test_a_summary_of_another_run_is_written_again(runs: Path, tmp_path: Path) -> None:
    folder = mixed(runs, "data", "summary.json", tmp_path / "run")
    run = train(folder, resume=True)
    assert coterie.load(folder).summary == run.summary


def test_a_summary_of_a_shorter_run_is_not_that_of_a_longer_one(runs: Path, tmp_path: Path) -> None:
    train(tmp_path / "longer", rounds=3)
    for name in PARTS["summary.json"][0]:
        shutil.copy(runs / "run" / name, tmp_path / "longer" / name)
    with pytest.raises(UserError, match=r"summary.json belongs to another run"):
        coterie.load(tmp_path / "longer")


def test_data_that_changed_before_the_first_checkpoint_are_noticed(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(UserError, match="the federation differs from the one that this run started with"):
        train(tmp_path / "run", data=1, resume=True)


def test_equal_runs_have_one_identity_and_longer_ones_keep_it(runs: Path, tmp_path: Path) -> None:
    train(tmp_path / "run")
    run = read_origin(tmp_path / "run").run
    assert run == read_origin(runs / "run").run
    train(tmp_path / "run", rounds=3, resume=True)
    assert run == read_origin(tmp_path / "run").run
    assert len({run, *(read_origin(runs / other).run for other in ("seed", "data"))}) == 3
    for file in ("summary.json", "announcement.json", "checkpoint/round-000003/manifest.json"):
        assert json.loads((tmp_path / "run" / file).read_text())["run"] == run
    assert len(coterie.load(tmp_path / "run").history) == 3
