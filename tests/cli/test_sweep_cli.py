"""`coterie sweep` as a user types it."""

import json
import os
import signal

import pytest
import tomli_w

from commands import coterie, in_folder
from coterie.cli.sweep_bars import SweepProgress
from sweeps import GOOD, IDLE, TREE


@pytest.fixture(autouse=True)
def in_a_folder_with_a_recipe(tmp_path, monkeypatch):
    sweep = {"space": {"method": {"eta": [IDLE, GOOD]}}}
    (tmp_path / "mine.toml").write_text(tomli_w.dumps({**TREE, "sweep": sweep}))
    with in_folder(tmp_path, monkeypatch):
        yield


def test_a_sweep_prints_a_table_and_leaves_a_folder(monkeypatch, tmp_path, capsys):
    assert coterie(monkeypatch, "sweep", "mine.toml") == 0
    folder = tmp_path / "runs" / "sweep" / "digits-fedavg"
    files = {"best.toml", "page.html", "study.log", "sweep.toml", "table.md", "trials", "trials.json"}
    assert {path.name for path in folder.iterdir() if path.name != ".lock"} == files
    found = json.loads((folder / "trials.json").read_text())
    best = found["trials"][found["best"]]
    assert best["settings"] == {"method.eta": GOOD}
    printed = capsys.readouterr()
    assert f"{100 * best['validation']:.2f}" in printed.out
    assert f"Trial {best['trial']} is the best" in printed.out
    assert "best.toml" in printed.out
    assert "trial 1: method.eta" in printed.err
    assert coterie(monkeypatch, "run", folder / "best.toml", "--json") == 0  # as it is
    summary = json.loads(capsys.readouterr().out)
    assert summary["validation"]["existing"]["as_is"]["mean"] == best["validation"]


def test_ctrl_c_stops_and_the_same_command_goes_on(monkeypatch, tmp_path, capsys):
    command = ["sweep", "mine.toml", "--search", "tpe", "--trials", "2", "--out"]
    assert coterie(monkeypatch, *command, "whole") == 0
    plain = SweepProgress.advance

    def interrupted(self, record):
        plain(self, record)
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(SweepProgress, "advance", interrupted)
    capsys.readouterr()
    assert coterie(monkeypatch, *command, "broken") == 130
    printed = capsys.readouterr()
    assert "Run the same command again to continue" in printed.err
    assert "2 of 2 trials have not run yet" in printed.out
    rounds = (tmp_path / "broken" / "trials" / "000" / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) == 3  # the round after the signal was let to its end
    monkeypatch.setattr(SweepProgress, "advance", plain)
    assert coterie(monkeypatch, *command, "broken") == 0
    one, other = (json.loads((tmp_path / name / "trials.json").read_text()) for name in ("whole", "broken"))
    assert one["trials"] == other["trials"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.toml", "--set", "partition.validation=0.0"], ["partition.validation=0.2"]),
        (["mine.toml", "--search", "random"], ["sweep.search", "grid"]),
        (["mine.toml", "--set", "sweep.space.method.eta={low=1,hihg=2}"], ["sweep.space.method.eta", "high"]),
        (["digits"], ["search space is empty", "[sweep.space]"]),
    ],
)
def test_a_mistake(monkeypatch, tmp_path, capsys, arguments, words):
    assert coterie(monkeypatch, "sweep", *arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    for word in words:
        assert word in told
    assert not (tmp_path / "runs").exists()
