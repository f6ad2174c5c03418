"""The folder of a run: what may be in it, who may read it, and what a full disk leaves."""

import csv
import json
import os
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.cli import main
from coterie.errors import DiskError, UserError
from coterie.storage import folder as folders
from coterie.storage.folder import RunFolder


def trained(out: Path, rounds: int = 2, *, resume: bool = False, names: str = "abc", method: str = "pflego"):
    rng = np.random.default_rng(0)
    arrays = {name: (rng.normal(size=(6, 4)), np.arange(6) % 2) for name in names}
    federation = coterie.Federation.from_arrays(arrays)
    keys = {"rounds": rounds, "out": out, "resume": resume, "checkpoint_every": 1}
    return coterie.train(federation, method=method, progress=False, **keys)


def replaced(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    "left", [[".lock"], [".lock", "rounds.jsonl"], [".lock", "rounds.jsonl", ".recipe.toml.partial"]]
)
def test_a_run_killed_before_it_began_leaves_a_folder_that_can_be_used(tmp_path, left):
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).touch()
    trained(tmp_path / "run")
    assert not (tmp_path / "run" / ".recipe.toml.partial").exists()


def test_a_log_without_a_recipe_is_not_overwritten(tmp_path):
    trained(tmp_path / "run")
    for path in sorted((tmp_path / "run").rglob("*"), reverse=True):
        if path.name != "rounds.jsonl":
            path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match="not an empty folder"):
        trained(tmp_path / "run")


def test_what_a_killed_run_left_is_deleted_when_it_is_resumed(tmp_path):
    trained(tmp_path / "run", 3)
    files = set((tmp_path / "run").rglob("*"))
    for litter in (".summary.json.partial", "checkpoint/personal/.partial", "checkpoint/personal/old.safetensors"):
        (tmp_path / "run" / litter).touch()
    for litter in ("checkpoint/.round-000004.partial", "checkpoint/round-000001"):
        (tmp_path / "run" / litter).mkdir()
    (tmp_path / "run" / "checkpoint" / "round-000001" / "shared.safetensors").touch()  # half of it was deleted
    trained(tmp_path / "run", 3, resume=True)
    assert set((tmp_path / "run").rglob("*")) == files


def test_personal_states_are_readable_by_their_owner_only(tmp_path):
    usual = os.umask(0)
    try:
        trained(tmp_path / "run")
    finally:
        os.umask(usual)
    private = [tmp_path / "run" / "clients.safetensors", *(tmp_path / "run" / "checkpoint").rglob("*")]
    assert len(private) > 8
    for path in [*private, tmp_path / "run" / "checkpoint"]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "run" / "report.html").stat().st_mode) == 0o666


FORMULAS = ["=1+1", "'=1+1", "''-1", "-x", "@a", "+b", "'plain", "plain"]


def test_names_that_a_spreadsheet_would_compute_are_text_and_come_back(tmp_path):
    run = trained(tmp_path / "run", names=FORMULAS, method="fedavg")
    with (tmp_path / "run" / "clients.csv").open(newline="") as file:
        written = [row["client"] for row in csv.DictReader(file)]
    assert written == ["'=1+1", "''=1+1", "'''-1", "'-x", "'@a", "'+b", "'plain", "plain"]
    assert [row["client"] for row in run.clients()] == FORMULAS
    assert [row["client"] for row in coterie.load(tmp_path / "run").clients()] == FORMULAS


def test_each_command_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train me.py", "--fast"])
    trained(tmp_path / "run")
    trained(tmp_path / "run", 3, resume=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "commands.jsonl").read_text().splitlines()]
    assert [line["command"] for line in lines] == ["'train me.py' --fast"] * 2
    assert lines[0]["coterie"] == coterie.__version__
    assert datetime.now(UTC) - datetime.fromisoformat(lines[1]["time"]) < timedelta(minutes=5)


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("recipe.toml", "rho = 0.002", "rho = 1.002", "recipe.toml differs from what this run wrote"),
        ("recipe.toml", "rounds = 2", "rounds = 3", "recipe.toml differs from what this run wrote"),
        ("rounds.jsonl", '"train_loss": 0', '"train_loss": 1', "rounds.jsonl differs .* line 1"),
        ("rounds.jsonl", '"round": 2', '"round": 3', "rounds.jsonl differs .* line 2"),
        ("summary.json", '"mean": 0.', '"mean": 1.', "summary.json is damaged"),
        ("clients.csv", "a,existing", "b,existing", "clients.csv is missing or damaged"),
        ("announcement.json", '"seed": 0', '"seed": 1', "announcement.json is damaged"),
    ],
)
def test_what_was_edited_is_not_loaded(tmp_path, file, old, new, why):
    trained(tmp_path / "run")
    replaced(tmp_path / "run" / file, old, new)
    with pytest.raises(UserError, match=why):
        coterie.load(tmp_path / "run")
    if file not in ("summary.json", "clients.csv"):  # these are written again
        with pytest.raises(UserError, match=why):
            trained(tmp_path / "run", resume=True)


def test_a_recipe_that_was_edited_does_not_resume_but_starts_another_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["coterie", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0

    assert command("run", "--set", "run.rounds=1", "--out", "run") == 0
    replaced(tmp_path / "run" / "recipe.toml", "rho = ", "rho = 1")
    capsys.readouterr()
    assert command("run", "--resume", "run") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "start a new run: coterie run run/recipe.toml" in told
    assert command("run", "run/recipe.toml", "--out", "other") == 0


def test_results_are_on_a_disk_that_is_too_full_for_the_page(tmp_path, monkeypatch):
    def full(self: RunFolder, page: str) -> None:
        raise OSError(28, "No space left on device", str(self.path / "report.html"))

    monkeypatch.setattr(RunFolder, "write_page", full)
    with pytest.raises(DiskError, match=r"report.html: No space left .*coterie run --resume .*run") as error:
        trained(tmp_path / "run")
    assert error.value.run.summary == coterie.load(tmp_path / "run").summary
    monkeypatch.undo()
    trained(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_write_that_fails_in_a_round_names_the_file_and_can_be_continued(tmp_path, monkeypatch):
    expected = trained(tmp_path / "expected", 4)
    plain, count = folders._append, []

    def full(path: Path, line: bytes) -> None:
        count.append(path.name)
        if count.count("rounds.jsonl") == 3:
            with path.open("ab") as file:
                file.write(line[:10])
            raise OSError(28, "No space left on device")
        plain(path, line)

    monkeypatch.setattr(folders, "_append", full)
    with pytest.raises(DiskError, match="No space left on device"):
        trained(tmp_path / "run", 4)
    monkeypatch.undo()
    run = trained(tmp_path / "run", 4, resume=True)
    assert run.summary.existing == expected.summary.existing


def test_a_missing_newest_checkpoint_is_a_warning(tmp_path, caplog):
    trained(tmp_path / "run", 3)
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "round-000003")
    with caplog.at_level("WARNING", logger="coterie"):
        run = coterie.load(tmp_path / "run")
    assert len(run.history) == 2
    assert "the models are those of round 2, while the summary is that of round 3" in caplog.text


def test_what_cannot_be_read_is_named(tmp_path):
    trained(tmp_path / "run")
    (tmp_path / "run" / "clients.csv").unlink()
    (tmp_path / "run" / "clients.csv").mkdir()
    with pytest.raises(UserError, match=r"cannot read .*clients.csv: Is a directory"):
        coterie.load(tmp_path / "run")
