"""Optuna's part of a sweep, with scores made up: who is given up, where TPE looks, and what the journal keeps."""

import sys

import pytest

from coterie.errors import UserError
from coterie.lab.sweep.space import Space
from coterie.lab.sweep.study import Study, hyperband
from coterie.lab.sweep.trial import Trial, complete

RATES = Space.of({"method": {"eta": [0.1, 0.2]}})
INTERVAL = Space.of({"method": {"eta": {"low": 0.0, "high": 1.0}}})


def test_a_pruned_trial_is_never_the_best(tmp_path):
    """Given up at 0.8, it beats what the complete one ends with; but what it would have ended with nobody knows."""
    grid, pruner = RATES.combinations(0), hyperband(1, 2)
    study = Study(tmp_path / "study.log", RATES, grid, 0, "data")
    study.begin()
    study.report(1, 0.9)
    assert not study.is_behind(pruner)
    study.report(2, 0.5)
    study.end("complete", 0.5)
    study.begin()
    study.report(1, 0.8)
    assert study.is_behind(pruner)
    study.end("pruned")
    again = Study(tmp_path / "study.log", RATES, grid, 0, "data")
    assert again.ended == study.ended
    assert [(trial.state, trial.score) for trial in again.ended] == [("complete", 0.5), ("pruned", None)]
    assert [trial.number for trial in complete(again.ended)] == [0]
    assert again.ended[1].ending == "pruned after round 1"


def test_of_equals_the_earlier_is_the_best():
    trials = [Trial(n, "complete", {}, score, {}) for n, score in enumerate([0.1, 0.7, 0.7, 0.3])]
    assert [trial.number for trial in complete(trials)] == [1, 2, 3, 0]


def test_tpe_looks_where_the_score_is_high(tmp_path):
    """With a score of one's own, whose top is at 0.3: after the ten that are drawn at random, nearer to it."""
    study = Study(tmp_path / "study.log", INTERVAL, None, 0, "data")
    distances = []
    for _ in range(40):
        _, point = study.begin()
        distances.append(abs(point["method.eta"] - 0.3))
        study.end("complete", 1 - distances[-1])
    assert sum(distances[20:]) / 20 < 0.5 * sum(distances[:10]) / 10


def test_tpe_learns_where_trials_diverge(tmp_path):
    """The score rises up to 0.5, and beyond there is none. Optuna forgets what failed: 13 of these 20 then diverge."""
    study = Study(tmp_path / "study.log", INTERVAL, None, 0, "data")
    for _ in range(30):
        _, point = study.begin()
        rate = point["method.eta"]
        study.end("complete", rate) if rate <= 0.5 else study.end("diverged", remark="round 1")
    assert sum(trial.state == "diverged" for trial in study.ended[10:]) < 10


def test_a_sweep_does_not_go_on_with_other_data(tmp_path):
    Study(tmp_path / "study.log", RATES, None, 0, "these data")
    with pytest.raises(UserError, match="uses other data"):
        Study(tmp_path / "study.log", RATES, None, 0, "those data")


def test_a_line_that_was_not_written_to_its_end_is_no_loss(tmp_path):
    path, grid = tmp_path / "study.log", RATES.combinations(0)
    study = Study(path, RATES, grid, 0, "data")
    study.begin()
    first = study.end("complete", 0.25)
    log = path.read_bytes()
    path.write_bytes(log + b'{"op_code":4,"wor')
    study = Study(path, RATES, grid, 0, "data")
    assert study.ended == [first]
    study.begin()
    second = study.end("failed", remark="no")
    assert Study(path, RATES, grid, 0, "data").ended == [first, second]
    path.write_bytes(log.replace(b"{", b"[", 1))
    with pytest.raises(UserError, match="damaged"):
        Study(path, RATES, grid, 0, "data")


def test_optuna_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for module in ("coterie.lab.sweep.study", "coterie.lab.sweep.sweep"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(UserError, match=r"pip install 'coterie\[sweep\]'"):
        __import__("coterie.lab.sweep.sweep")
