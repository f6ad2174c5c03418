"""A small run, as its page is given it."""

from typing import Any

KEYS = ("mean", "weighted_mean", "std", "stderr", "bottom_decile", "restricted_mean", "last10_mean")
NOTHING: dict[str, Any] = dict.fromkeys(KEYS)


def statistics(mean: float) -> dict[str, Any]:
    figures = (mean, mean + 0.001, 0.05, 0.0123, mean - 0.1, mean, mean - 0.002)
    return dict(zip(KEYS, figures, strict=True))


def evaluation(shift: float = 0.0) -> dict[str, Any]:
    existing = {"as_is": 0.85, "adapted": 0.9, "participants": 0.95}
    return {
        "existing": {key: statistics(mean - shift) for key, mean in existing.items()},
        "new": {"before": statistics(0.5 - shift), "after": statistics(0.8 - shift)},
    }


COST = {"bytes_down": 4_000_000, "bytes_up": 2_000_000, "flops": 8e9, "body_forwards": 40, "body_backwards": 4}
RECIPE = {"data": {"name": "digits"}, "method": {"name": "pflego", "tau": 20}, "run": {"rounds": 2}}
HISTORY: list[dict[str, Any]] = [
    {"round": 1, "cohort": ["a", "b"], "train_loss": 0.9, "eval": {**evaluation(0.2), "train_loss": 0.8}},
    {"round": 2, "cohort": ["b", "c"], "train_loss": 0.5, "eval": {**evaluation(), "train_loss": 0.4}},
]


def summary(**changes: Any) -> dict[str, Any]:
    facts = {"method": "pflego", "engine": "loop", "seed": 7, "rounds": 2, "protocol": "On existing.as_is, a sentence."}
    return {**facts, **evaluation(), "train_loss": 0.4, "cost": {**COST, "seconds": 4.0}, **changes}


def client(name: str, role: str = "existing", accuracy: float = 0.75, adapted: float = 0.875) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "restricted": accuracy, "adapted": adapted, "adapted_restricted": adapted}
    facts = {"client": name, "role": role, "classes": "1 3", "train_examples": 28, "test_examples": 8, "visits": 1}
    return facts | figures


CLIENTS = [client("a"), client("b"), client("c", accuracy=1.0), client("d", "new", 0.5, 1.0)]
