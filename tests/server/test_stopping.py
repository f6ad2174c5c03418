"""The stopping rule, by hand and on runs that are killed, resumed and made longer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.measure.cost import Cost
from coterie.measure.protocols import Existing, Figures, New, Statistics
from coterie.measure.record import Evaluated, Record
from coterie.server.stopping import StoppingRule, StopSettings

SCORES = [0.5, 0.7, 0.69, 0.7, 0.71, 0.6, 0.7, 0.65, 0.9]
"""Validation scores after rounds 2, 4, 6, ..."""


def record(index: int, score: float | None, loss: float | None = 1.0) -> Record:
    validation = Figures(
        Existing(Statistics(mean=score), Statistics(mean=0.1)), New(Statistics(), Statistics(mean=0.2))
    )
    test = Existing(Statistics(mean=index / 100))
    return Record(index, ("a",), None, Cost(), Evaluated(test, New(), loss, validation))


def history(*scores: float | None) -> list[Record]:
    """Return records in which every other round is evaluated, and the last one too."""
    records = []
    for number, score in enumerate(scores, 1):
        records += [replace(record(2 * number - 1, 0.0), eval=None), record(2 * number, score)]
    return records


def ended(settings: StopSettings, records: list[Record]) -> int:
    """Return the round after which a run ends, or 0."""
    rule = StoppingRule(settings, 2)
    return next((each.round for n, each in enumerate(records, 1) if rule.is_met(records[:n])), 0)


@pytest.mark.parametrize(
    ("patience", "improvement", "end", "chosen"),
    # improvements after rounds 2, 4, 10 and 18; with a gain of more than 0.05 only after 2, 4 and 18
    [
        (1, 0.0, 6, 4),
        (2, 0.0, 8, 4),
        (3, 0.0, 16, 10),
        (4, 0.0, 0, 18),
        (3, 0.05, 10, 4),
        (7, 0.05, 0, 18),
        (0, 0.0, 0, 0),
    ],
)
def test_patience_by_hand(patience: int, improvement: float, end: int, chosen: int) -> None:
    settings, records = StopSettings(patience=patience, improvement=improvement), history(*SCORES)
    assert ended(settings, records) == end
    found = StoppingRule(settings, 2).chosen(records[: end or len(records)])
    if not patience:
        assert found is None
        return
    assert found is not None
    assert (found.round, found.value, found.stopped) == (chosen, SCORES[chosen // 2 - 1], bool(end))
    assert found.existing.as_is.mean == chosen / 100  # the test score of the chosen round


def test_a_loss_has_to_fall_and_a_score_has_to_rise() -> None:
    losses = [0.9, 0.5, 0.6, 0.4, 0.41, 0.4]
    records = [record(2 * n, n / 10, loss) for n, loss in enumerate(losses, 1)]
    assert ended(StopSettings(patience=2, by="train_loss"), records) == 12
    assert ended(StopSettings(patience=2), records) == 0
    found = StoppingRule(StopSettings(patience=2, by="train_loss"), 2).chosen(records)
    assert found is not None
    assert (found.round, found.value) == (8, 0.4)


def test_other_protocols_judge_by_their_own_score() -> None:
    for by, value in (("adapted", 0.1), ("new_after", 0.2)):
        found = StoppingRule(StopSettings(patience=1, by=by), 2).chosen(history(*SCORES))  # type: ignore[arg-type]
        assert found is not None
        assert (found.round, found.value) == (2, value)


def test_a_figure_that_is_not_known_is_no_improvement() -> None:
    settings = StopSettings(patience=2)
    assert ended(settings, history(None, None, 0.5)) == 4
    found = StoppingRule(settings, 2).chosen(history(None, None))
    assert found is not None
    assert (found.round, found.value) == (None, None)


def test_evaluations_at_the_end_of_a_run_do_not_count() -> None:
    """Otherwise a run of 7 rounds that is made longer would decide differently from one that had more at once."""
    records = [*history(0.5, 0.6, 0.55), record(7, 0.5)]
    assert ended(StopSettings(patience=2), records) == 0
    assert ended(StopSettings(patience=2), [*records, record(8, 0.5)]) == 8


def federation() -> coterie.Federation:
    rng, clients = np.random.default_rng(2), {}
    for name in "abcd":
        parts = [(rng.normal(size=(n, 4)), np.arange(n) % 2) for n in (12, 8, 6)]
        clients[name] = sum(parts, ())
    return coterie.Federation.from_arrays(clients)


def train(out: Path | None = None, *, patience: int = 3, rounds: int = 60, resume: bool = False, **keys: Any) -> Any:
    return coterie.train(
        federation(),
        method=coterie.methods.PFLEGO(tau=3, rho=0.05),
        rounds=rounds,
        clients_per_round=2,
        eval_every=2,
        checkpoint_every=3,
        settings={"stop": {"patience": patience, **keys.pop("stop", {})}},
        out=out,
        resume=resume,
        **keys,
    )


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    return folder, train(folder)


def test_a_run_ends_where_its_own_history_says(stopped: tuple[Path, Any]) -> None:
    folder, run = stopped
    curve = {each.round: each.eval.validation.existing.as_is.mean for each in run.history if each.eval}
    end, best = len(run.history), max(curve, key=lambda index: (curve[index], -index))
    assert 2 < end < 60
    assert end == best + 2 * 3
    assert (run.summary.stop.round, run.summary.stop.value, run.summary.stop.stopped) == (best, curve[best], True)
    assert run.summary.stop.existing.as_is == run.history[best - 1].eval.existing.as_is
    assert run.summary.rounds == end
    told = run.summary.remarks()[0]
    assert told.startswith(f"stopped after round {end}, when 3 evaluations in a row had brought no improvement")
    assert f"the rule chose round {best} with {100 * curve[best]:.2f} % (validation accuracy, existing, as is)" in told
    assert told in (folder / "report.html").read_text()
    written = json.loads((folder / "summary.json").read_text())["stop"]
    assert (written["by"], written["patience"], written["round"]) == ("as_is", 3, best)
    assert coterie.load(folder).summary == run.summary


def test_the_rule_changes_nothing_before_it_is_met(stopped: tuple[Path, Any]) -> None:
    _, run = stopped
    plain = train(patience=0, rounds=len(run.history))
    assert plain.summary.stop is None
    assert timeless(plain) == timeless(run)
    for name, value in run.shared.items():
        assert value.equal(plain.shared[name])


def timeless(run: Any) -> list[Record]:
    return [replace(each, cost=replace(each.cost, seconds=0.0, eval_seconds=0.0)) for each in run.history]


@pytest.mark.parametrize("moment", [1, 5, "last"])
def test_a_run_that_is_interrupted_stops_at_the_same_round(
    stopped: tuple[Path, Any], tmp_path: Path, moment: Any
) -> None:
    _, run = stopped
    moment = len(run.history) - 1 if moment == "last" else moment

    def killed(record: Record) -> None:
        if record.round == moment:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", on_round=killed)
    resumed = train(tmp_path / "run", resume=True)
    assert timeless(resumed) == timeless(run)
    assert resumed.summary.stop == run.summary.stop
    for client in "abcd":
        for name, value in run.personal(client).items():
            assert value.equal(resumed.personal(client)[name])


def test_more_rounds_leave_a_stopped_run_as_it_is_and_more_patience_continues_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = train(folder)
    longer = train(folder, rounds=80, resume=True)
    assert timeless(longer) == timeless(first)
    assert longer.summary.stop == first.summary.stop
    assert coterie.load(folder).summary.rounds == len(first.history)
    with pytest.raises(coterie.UserError, match=r"stop\.patience \(3 there, 2 here\)"):
        train(folder, rounds=80, patience=2, resume=True)
    with pytest.raises(coterie.UserError, match=r"stop\.by"):
        train(folder, rounds=80, resume=True, stop={"by": "adapted"})
    patient = train(folder, rounds=80, patience=5, resume=True)
    assert len(patient.history) > len(first.history)
    assert timeless(patient) == timeless(train(rounds=80, patience=5))
    endless = train(folder, rounds=80, patience=0, resume=True)
    assert len(endless.history) == 80
    assert coterie.load(folder).summary.stop is None


def test_a_run_that_is_made_longer_before_it_stops_decides_as_if_it_had_been_so_long_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert not train(folder, rounds=3).summary.stop.stopped
    longer, whole = train(folder, rounds=60, resume=True), train(rounds=60)
    assert len(longer.history) == len(whole.history) < 60
    assert longer.summary.stop == whole.summary.stop


def test_without_validation_examples_the_error_says_what_to_do() -> None:
    clients = {"a": (np.ones((4, 3)), [0, 1, 0, 1]), "b": (np.zeros((4, 3)), [0, 1, 0, 1])}
    fed = coterie.Federation.from_arrays(clients)
    with pytest.raises(coterie.UserError, match=r'stop\.by = "as_is": existing users have no validation examples'):
        coterie.train(fed, rounds=2, settings={"stop": {"patience": 1}})
    with pytest.raises(coterie.UserError, match=r'stop\.by = "new_after" needs new users'):
        coterie.train(fed, rounds=2, settings={"stop": {"patience": 1, "by": "new_after"}})
    run = coterie.train(fed, rounds=2, settings={"stop": {"patience": 1, "by": "train_loss"}})
    assert run.summary.stop.by == "train_loss"


def test_the_last_round_of_a_stopped_run_has_a_checkpoint(stopped: tuple[Path, Any]) -> None:
    folder, run = stopped
    assert (folder / "checkpoint" / f"round-{len(run.history):06d}").is_dir()
    assert isinstance(run.summary.stop.round, int)
