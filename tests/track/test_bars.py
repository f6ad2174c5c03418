"""The progress bars of a run."""

import io
import logging
from dataclasses import replace

import pytest
from rich.console import Console

import coterie
import reference as ref
from coterie.measure.cost import Cost
from coterie.measure.protocols import Existing, New, Statistics
from coterie.measure.record import Evaluated, Record
from coterie.methods import FedAvg, Scafflix
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.track.bars import RunProgress


def bars(method, clients, record=None):
    """Return what the screen shows, after two rounds, once the personal states of these clients were asked for."""
    screen = Console(file=io.StringIO(), width=200, color_system=None)
    prepared = prepare(replace(Recipe.parse({"run": {"rounds": 7}}), method=method), ref.federation())
    prepared.rounds.history = [Record(index, (), None, Cost()) for index in (1, 2)]
    progress = RunProgress(screen, prepared.clients, prepared.rounds, quiet=False)
    for client in clients:
        prepared.clients.personal(client)
    if record:
        progress.advance(record)
    with screen.capture() as seen:
        screen.print(progress._bar.get_renderable())
    return seen.get()


def test_clients_that_prepare_are_counted_once_each():
    shown = bars(Scafflix(optimum_epochs=1), [3, 1, 3])
    assert "client 2/4" in shown
    assert "round  2/7" in shown


def test_there_is_a_second_bar_only_while_clients_prepare():
    evaluated = Evaluated(Existing(as_is=Statistics(mean=0.5)), New())
    record = Record(3, ("a",), 0.25, Cost(), evaluated)
    assert "client" not in bars(Scafflix(optimum_epochs=1), [])
    after = bars(Scafflix(optimum_epochs=1), [0], record)
    assert "client" not in after
    assert "round 3/7" in after
    assert "loss 0.2500  accuracy 50.0 %" in after
    assert "client" not in bars(FedAvg(), [0])


def test_an_evaluation_has_a_bar_with_its_clients():
    screen = Console(file=io.StringIO(), width=200, color_system=None)
    prepared = prepare(replace(Recipe.parse({"run": {"rounds": 7}}), method=FedAvg()), ref.federation(new=1))
    progress = RunProgress(screen, prepared.clients, prepared.rounds, quiet=False)
    seen = []

    def scored(clients):
        progress._scored(clients)
        with screen.capture() as shown:
            screen.print(progress._bar.get_renderable())
        seen.append(shown.get())

    prepared.clients.on_scored = scored
    prepared.rounds.evaluate()
    assert "evaluating 4/4" in seen[-1]
    assert any("evaluating 3/4" in each for each in seen)  # the new user comes last
    progress.advance(Record(1, ("a",), 0.25, Cost(), Evaluated(Existing(), New())))
    with screen.capture() as shown:
        screen.print(progress._bar.get_renderable())
    assert "evaluating" not in shown.get()


@pytest.mark.parametrize("progress", [None, True, False])
def test_train_prints_a_line_for_each_evaluation_if_asked(progress, capsys, caplog):
    """Not by default, because stderr is no terminal here."""
    caplog.set_level(logging.WARNING, logger="coterie")  # otherwise the log has the lines
    coterie.train(ref.federation(), method=FedAvg(tau=1), rounds=4, eval_every=2, progress=progress)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("round ") and " as is" in line]
    assert [line.partition(":")[0] for line in lines] == (["round 2", "round 4"] if progress else [])
