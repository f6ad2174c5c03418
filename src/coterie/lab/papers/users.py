"""Existing and new users of a run at the round that validation picks, and runs compared seed by seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coterie.measure.protocols import ADAPTED, OF_ALL_CLIENTS, Statistics
from coterie.measure.record import Evaluated, Record
from coterie.measure.summary import totals


class Over(NamedTuple):
    """Over users, in percent."""

    mean: float
    bottom_decile: float
    std: float

    @classmethod
    def of(cls, found: Statistics) -> "Over | None":
        """Return the statistics in percent, or None where there are no such users."""
        return None if found.mean is None else cls(*(100 * getattr(found, name) for name in cls._fields))


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

    def as_dict(self) -> dict[str, Any]:
        return {key: value._asdict() if isinstance(value, Over) else value for key, value in self._asdict().items()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Picked":
        figures: Any = {key: Over(**value) if isinstance(value, dict) else value for key, value in content.items()}
        return cls(**figures)


def pick(records: Sequence[Record]) -> Picked | None:
    """From a run's rounds; None where nobody keeps examples for validation."""
    evaluated = [(record.round, record.eval) for record in records if record.eval and record.eval.validation]
    found = [(index, each, mean) for index, each in evaluated if (mean := _validated(each)) is not None]
    if not found:
        return None
    index, test, validation = max(found, key=lambda each: each[2])
    cost = totals([record for record in records if record.round <= index])
    return Picked(
        round=index,
        validation=100 * validation,
        **{protocol.name: Over.of(test[protocol.key]) for protocol in OF_ALL_CLIENTS},
        bytes=cost.bytes_down + cost.bytes_up,
        flops=cost.flops,
    )


def _validated(evaluated: Evaluated) -> float | None:
    return evaluated.validation[ADAPTED.key].mean if evaluated.validation else None


class SeedMean(NamedTuple):
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


def seed_mean(values: Sequence[float]) -> SeedMean | None:
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return SeedMean(statistics.fmean(values), None if std is None else std / math.sqrt(len(values)), std)


def paired(these: Mapping[int, float], those: Mapping[int, float]) -> SeedMean | None:
    """These minus those, over the seeds of both: runs of one seed have the same users, the same of them new, and one
    initial model, so that what comes of these cancels."""
    return seed_mean([value - those[seed] for seed, value in these.items() if seed in those])
