"""Existing and new users of a run at the round that validation picks, and runs compared seed by seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Record = dict[str, Any]


class Over(NamedTuple):
    """Over users, in percent."""

    mean: float
    bottom_decile: float
    std: float

    @classmethod
    def of(cls, figures: Record) -> "Over | None":
        """Of an evaluation's figures; None where there are no such users."""
        return None if figures["mean"] is None else cls(*(100 * figures[name] for name in cls._fields))


class Picked(NamedTuple):
    """A run at the round where adapted existing users validate best; where several do, at the first."""

    round: int
    validation: float
    """Their mean accuracy, in percent."""
    as_is: Over | None
    adapted: Over | None
    before: Over | None
    after: Over | None
    bytes: int
    """To that round, down and up."""
    flops: int
    """To that round."""

    def as_dict(self) -> Record:
        return {key: value._asdict() if isinstance(value, Over) else value for key, value in self._asdict().items()}

    @classmethod
    def from_dict(cls, content: Record) -> "Picked":
        figures: Record = {key: Over(**value) if isinstance(value, dict) else value for key, value in content.items()}
        return cls(**figures)


def pick(records: Sequence[Record]) -> Picked | None:
    """From a run's rounds; None where nobody keeps examples for validation."""
    found = [record for record in records if _validated(record) is not None]
    if not found:
        return None
    best = max(found, key=lambda record: _validated(record) or 0.0)
    test, costs = best["eval"], [record["cost"] for record in records if record["round"] <= best["round"]]
    return Picked(
        best["round"],
        100 * test["validation"]["existing"]["adapted"]["mean"],
        Over.of(test["existing"]["as_is"]),
        Over.of(test["existing"]["adapted"]),
        Over.of(test["new"]["before"]),
        Over.of(test["new"]["after"]),
        sum(cost["bytes_down"] + cost["bytes_up"] for cost in costs),
        sum(cost["flops"] for cost in costs),
    )


def _validated(record: Record) -> float | None:
    figures = record.get("eval", {}).get("validation")
    mean: float | None = figures["existing"]["adapted"]["mean"] if figures else None
    return mean


class Spread(NamedTuple):
    """Over seeds."""

    mean: float
    stderr: float | None
    """Of the mean; None for a single seed."""
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.stderr is None else f"{self.mean:.2f} ± {self.stderr:.2f}"

    @property
    def in_errors(self) -> float | None:
        """The mean in units of its standard error: how far it is from nothing."""
        return self.mean / self.stderr if self.stderr else None


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), None if std is None else std / math.sqrt(len(values)), std)


def paired(these: Mapping[int, float], those: Mapping[int, float]) -> Spread | None:
    """These minus those, over the seeds of both: runs of one seed have the same users, the same of them new, and one
    initial model, so that what comes of these cancels."""
    return spread([value - those[seed] for seed, value in these.items() if seed in those])
