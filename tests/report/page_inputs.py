"""A small run, as its page is given it."""

from typing import Any

from coterie.measure.cost import Cost
from coterie.measure.protocols import Existing, New, Statistics
from coterie.measure.record import Evaluated, Record
from coterie.measure.summary import Summary


def statistics(mean: float) -> Statistics:
    return Statistics(mean, mean + 0.001, 0.05, 0.0123, mean - 0.1, mean, mean - 0.002, 2 - mean, 1 - mean)


def existing(shift: float = 0.0) -> Existing:
    return Existing(statistics(0.85 - shift), statistics(0.9 - shift), statistics(0.95 - shift))


def new(shift: float = 0.0) -> New:
    return New(statistics(0.5 - shift), statistics(0.8 - shift))


COST = Cost(4_000_000, 2_000_000, 8_000_000_000, 40, 4, 4.0, 6.0)
RECIPE = {"data": {"name": "digits"}, "method": {"name": "pflego", "tau": 20}, "run": {"rounds": 2}}
HISTORY = [
    Record(1, ("a", "b"), 0.9, Cost(), Evaluated(existing(0.2), new(0.2), 0.8, train_score=statistics(0.7))),
    Record(2, ("b", "c"), 0.5, Cost(), Evaluated(existing(), new(), 0.4, train_score=statistics(0.96))),
]


def summary(**changes: Any) -> Summary:
    facts: dict[str, Any] = {"method": "pflego", "engine": "loop", "seed": 7, "rounds": 2, "score": "accuracy"}
    facts |= {"protocol": "On existing.as_is, a sentence.", "existing": existing(), "new": new(), "cost": COST}
    return Summary(**{**facts, "train_loss": 0.4, **changes})


def client(name: str, role: str = "existing", accuracy: float = 0.75, adapted: float = 0.875) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "restricted": accuracy, "adapted": adapted, "adapted_restricted": adapted}
    facts = {"client": name, "role": role, "classes": "1 3", "train_examples": 28, "test_examples": 8, "visits": 1}
    return facts | figures


CLIENTS = [client("a"), client("b"), client("c", accuracy=1.0), client("d", "new", 0.5, 1.0)]
