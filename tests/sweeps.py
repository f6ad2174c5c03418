"""A sweep that takes a second: FedAvg on digits, a linear model, four clients and a new user, four rounds."""

from pathlib import Path

from coterie import recipe as recipes
from coterie.lab.sweep.space import SweepSettings
from coterie.lab.sweep.sweep import Sweep

TREE = {
    "data": {"name": "digits"},
    "partition": {"clients": 5, "classes_per_client": 4, "new_users": 0.2, "validation": 0.25},
    "model": {"name": "logreg"},
    "method": {"name": "fedavg", "eta": 0.1, "tau": 2},
    "run": {"rounds": 4, "eval_every": 1},
    "eval": {"adapt_steps": 1},
}
GOOD, IDLE = 0.1, 0.0
"""Rates: one that learns, one that does not move."""


def sweep(out: Path, space: dict, changes=(), **settings) -> Sweep:
    return Sweep(recipes.read(TREE, changes), SweepSettings(space=space, **settings), out)


def played(work: Sweep, should_stop=lambda: False, on_round=lambda record: None) -> Sweep:
    """To the end, and reported."""
    try:
        for _ in work.play(lambda number, point: None, on_round, should_stop):
            pass
    finally:
        work.close()
    work.report()
    return work
