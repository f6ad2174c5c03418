"""Statistics over existing and new users at the round with the best validation score, and means over seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coterie.measure.protocols import ADAPTED, OF_ALL_CLIENTS, Statistics
from coterie.measure.record import Evaluated, Record
from coterie.measure.summary import totals


class Over(NamedTuple):
    """Statistics over users, in percent."""

    mean: float
    bottom_decile: float
    std: float

    @classmethod
    def of(cls, found: Statistics) -> "Over | None":
        """Return the statistics in percent, or None where there are no such users."""
        return None if found.mean is None else cls(*(100 * getattr(found, name) for name in cls._fields))


class Picked(NamedTuple):
    """A run at the round where adapted existing users have the best validation score, or the first of such rounds."""

    round: int
    validation: float
    """Mean validation accuracy of adapted existing users at that round, in percent."""
    as_is: Over | None
    adapted: Over | None
    before: Over | None
    after: Over | None
    bytes: int
    """Bytes sent in both directions, up to that round."""
    flops: int
    """Floating-point operations of the clients, up to that round."""

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as in runs.json."""
        return {key: value._asdict() if isinstance(value, Over) else value for key, value in self._asdict().items()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Picked":
        """Read the statistics from runs.json."""
        figures: Any = {key: Over(**value) if isinstance(value, dict) else value for key, value in content.items()}
        return cls(**figures)


def pick(records: Sequence[Record]) -> Picked | None:
    """Pick the round with the best validation score. Returns None if there are no validation examples."""
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
    """Mean over seeds."""

    mean: float
    stderr: float | None
    """Standard error of the mean, or None for a single seed."""
    std: float | None
    """Standard deviation over seeds, or None for a single seed."""

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.stderr is None else f"{self.mean:.2f} ± {self.stderr:.2f}"

    @property
    def in_errors(self) -> float | None:
        """Mean in units of its standard error, which says how clearly it differs from zero."""
        return self.mean / self.stderr if self.stderr else None


def seed_mean(values: Sequence[float]) -> SeedMean | None:
    """Average values of different seeds, or return None if there are no values."""
    if not values:
        return None
    std = statistics.stdev(values) if len(values) > 1 else None
    return SeedMean(statistics.fmean(values), None if std is None else std / math.sqrt(len(values)), std)


def paired(these: Mapping[int, float], those: Mapping[int, float]) -> SeedMean | None:
    """Average the differences between two sets of runs, over the seeds that both of them have.

    Runs of the same seed have the same existing users, the same new users and the same initial model, so the effects of
    these cancel.
    """
    return seed_mean([value - those[seed] for seed, value in these.items() if seed in those])
