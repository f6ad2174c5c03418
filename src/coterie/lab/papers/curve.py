"""The curve of a run: a few kilobytes that are kept with its figures, so that run folders need not be kept."""

import math
import statistics
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from coterie.measure.record import Record

MOST = 200
"""Largest number of points of a curve. Of more evaluations, evenly spaced ones are kept, and the last one."""


class Point(NamedTuple):
    """One evaluated round of a curve."""

    round: float
    accuracy: float | None
    """Accuracy of existing users under the protocol of the paper, in percent."""
    loss: float | None
    """Training loss of all existing users."""
    bytes: float
    """Bytes sent in both directions, up to this round."""
    train_accuracy: float | None = None
    """Accuracy of existing users as they are on their training examples, in percent."""


class Curve(tuple[Point, ...]):
    """The evaluated rounds of a run, or their means over runs."""

    @classmethod
    def of(cls, records: Sequence[Record], protocol: str) -> "Curve | None":
        """Read the curve of a run, with four digits of each quantity, or return None if it was never evaluated."""
        sent = accumulate(record.cost.bytes_down + record.cost.bytes_up for record in records)
        points = [
            Point(
                record.round,
                _percent(record.eval[f"existing.{protocol}"].mean),
                None if record.eval.train_loss is None else _short(record.eval.train_loss),
                int(_short(total)),
                _percent(record.eval.train_score.mean) if record.eval.train_score else None,
            )
            for record, total in zip(records, sent, strict=True)
            if record.eval
        ]
        every = math.ceil(len(points) / MOST)
        return cls([*points[: -1 : max(1, every)], points[-1]]) if points else None

    def as_dict(self) -> dict[str, list[float | None]]:
        """Return the curve as in runs.json: a list for each quantity, except for those that no point has."""
        columns = zip(Point._fields, zip(*self, strict=True), strict=True)
        return {name: list(column) for name, column in columns if any(value is not None for value in column)}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Curve":
        """Read a curve from runs.json. A quantity that is not there is None at all points."""
        columns = [content.get(name, [None] * len(content["round"])) for name in Point._fields]
        return cls(Point(*values) for values in zip(*columns, strict=True))

    def reaches(self, accuracy: float) -> Point | None:
        """Return the first point with at least this accuracy, in percent, or None."""
        return next((each for each in self if each.accuracy is not None and each.accuracy >= accuracy), None)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """Average curves at the rounds that all of them have."""
    rounds = set.intersection(*({point.round for point in curve} for curve in curves))
    aligned = zip(*([point for point in curve if point.round in rounds] for curve in curves), strict=True)
    return Curve(mean_point(points) for points in aligned)


def mean_point(points: Sequence[Point]) -> Point:
    """Average points of several curves. A quantity that one of them does not have is None."""
    return Point(*map(_mean, zip(*points, strict=True)))  # type: ignore[arg-type]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
