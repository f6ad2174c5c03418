"""The bars that one sees while a run goes on."""

import io

from rich.console import Console

import reference as ref
from coterie.measure.cost import Cost
from coterie.measure.protocols import Existing, New, Statistics
from coterie.measure.record import Evaluated, Record
from coterie.methods import FedAvg, Scafflix
from coterie.track.bars import RunProgress


def bars(method, clients, record=None):
    """What is on the screen once so many clients were looked at."""
    screen = Console(file=io.StringIO(), width=200, color_system=None)
    setup = ref.setup(method)
    progress = RunProgress(screen, setup, 7, 2, quiet=False)
    for client in clients:
        setup.create(client)
    if record:
        progress.advance(record)
    with screen.capture() as seen:
        screen.print(progress._bar.get_renderable())
    return seen.get()


def test_clients_that_settle_are_counted_once_each():
    shown = bars(Scafflix(optimum_epochs=1), [3, 1, 3])
    assert "client 2/4" in shown
    assert "round  2/7" in shown


def test_no_second_bar_before_someone_settles_after_the_round_or_where_nobody_does():
    evaluated = Evaluated(Existing(as_is=Statistics(mean=0.5)), New())
    record = Record(3, ("a",), 0.25, Cost(), evaluated)
    assert "client" not in bars(Scafflix(optimum_epochs=1), [])
    after = bars(Scafflix(optimum_epochs=1), [0], record)
    assert "client" not in after
    assert "round 3/7" in after
    assert "loss 0.2500  accuracy 50.0 %" in after
    assert "client" not in bars(FedAvg(), [0])
