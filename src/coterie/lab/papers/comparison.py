"""Comparison of published and measured results, as tables and as JSON."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie.lab.papers.curve import Curve, Point, mean_curve, mean_point
from coterie.lab.papers.measured import Measured, Percentage, over_seeds
from coterie.lab.papers.sheet import PublishedUsers
from coterie.lab.papers.users import Over, SeedMean, seed_mean
from coterie.measure.protocols import OF_ALL_CLIENTS, PROTOCOLS
from coterie.report.tables import Table
from coterie.report.units import DASH, count, duration, scaled

LABEL_SPACES = {"local": "own classes", "global": "all classes"}
"""What a client's model chooses among, by label space."""
MIXED = (
    "Rows that choose among all classes cannot be compared with rows that choose among each client's own classes, "
    "which is easier. Restricted: every row chooses among each client's own classes."
)
"""Note on a table with both label spaces."""


@dataclass(frozen=True)
class Row:
    """One cell of a paper's table, with the runs of all seeds."""

    at: Mapping[str, str]
    """Value on each axis of the experiment."""
    protocol: str
    """Name of the protocol of the published figure, among those of existing users."""
    published: Percentage | None
    """Published accuracy."""
    published_seconds: float | None
    """Published seconds per round."""
    runs: Sequence[Measured]
    """Figures of the finished runs."""
    state: str
    """Description of the runs that are not finished, or an empty string if all are."""
    users: PublishedUsers = field(default_factory=dict)
    """Published figures over existing and new users."""
    seeds: Sequence[int] = ()
    """Seeds of the finished runs."""
    diverged: bool = False
    """Whether a run diverged and will therefore never finish."""
    labels: str = ""
    """Label space: "local" or "global"."""
    target: float | None = None
    """Accuracy that comparable rows are compared at, in percent: the rounds and bytes until it is reached."""

    @property
    def curve(self) -> Curve | None:
        """Mean of the curves of the finished runs, or None if none was kept."""
        curves = [run.curve for run in self.runs if run.curve]
        return mean_curve(curves) or None if curves else None

    @property
    def reached(self) -> Point | None:
        """Mean over the finished runs of the first point that reaches the target, or None if a run does not."""
        curves = [run.curve for run in self.runs if run.curve]
        points = [curve.reaches(self.target) for curve in curves] if self.target is not None else []
        return mean_point([point for point in points if point]) if points and all(points) else None

    @property
    def measured(self) -> Measured | None:
        """Mean over the finished runs, or None if there are none."""
        return over_seeds(self.runs)

    def difference(self, measured: Percentage | None, of_one: float = 1.0) -> float | None:
        """Return measured minus published, in standard errors of this difference.

        `of_one` is what is printed for each standard error: 1, or 1.96 in a 95 % confidence interval.
        """
        if self.published is None or measured is None:
            return None
        error = math.hypot(measured.stderr or 0.0, (self.published.stderr or 0.0) / of_one)
        return (measured.mean - self.published.mean) / error if error else None

    def compared(self, measured: Percentage | None) -> str:
        """Return the figure as text, with its difference from the published one in brackets."""
        difference = self.difference(measured)
        return text(measured) + ("" if difference is None else f" ({difference:+.1f})")

    def each(self, protocol: str, figure: str = "mean") -> dict[int, float]:
        """Return a statistic over users, by seed, at the round with the best validation score."""
        runs = zip(self.seeds, self.runs, strict=True)
        found = {seed: getattr(run.picked, protocol) for seed, run in runs if run.picked}
        return {seed: getattr(over, figure) for seed, over in found.items() if over is not None}

    def told(self, figure: str) -> str:
        """Return the figure, followed by what is missing."""
        return " ".join([figure] * bool(self.runs) + [f"({self.state})"] * bool(self.state))

    def as_dict(self) -> dict[str, Any]:
        """Return the row as in table.json."""
        measured = self.measured
        return {
            **self.at,
            "state": self.state or "finished",
            "seeds": len(self.runs),
            "published": self.published and self.published._asdict(),
            "published_seconds": self.published_seconds,
            "measured": measured
            and {
                key: value._asdict() if isinstance(value, Percentage) else value
                for key, value in measured._asdict().items()
                if key != "curve"
            },
            **self._to_target(),
            "difference": self.published
            and measured
            and {key: self.difference(getattr(measured, key)) for key in ("figure", "as_is", "adapted")},
            "users": self._users(),
        }

    def _to_target(self) -> dict[str, Any]:
        reached = self.reached
        return {
            "target": self.target,
            "rounds_to_target": reached and reached.round,
            "bytes_to_target": reached and reached.bytes,
        }

    def _users(self) -> dict[str, Any] | None:
        """Return statistics over users by protocol, each with its mean over seeds."""
        if not any(run.picked for run in self.runs):
            return None
        names = [protocol.name for protocol in OF_ALL_CLIENTS]
        return {name: {figure: self._over_seeds(name, figure) for figure in Over._fields} for name in names}

    def _over_seeds(self, protocol: str, figure: str) -> dict[str, Any] | None:
        found = seed_mean(list(self.each(protocol, figure).values()))
        return found and found._asdict()


def accuracy(rows: Sequence[Row]) -> Table:
    """Return a table of accuracies with a line for each row. Empty columns are omitted."""
    lines = []
    mixed = mixes_label_spaces(rows)
    for row in rows:
        measured = row.measured
        lines.append(
            {
                **row.at,
                "chooses among": LABEL_SPACES.get(row.labels, DASH) if mixed else DASH,
                "published": text(row.published),
                "measured": row.told(row.compared(measured and measured.figure)),
                "over seeds": text(measured and measured.spread, ".2f"),
                "as is": row.compared(measured and measured.as_is),
                "adapted": row.compared(measured and measured.adapted),
                "as is, restricted": text(measured and measured.restricted, ".2f") if mixed else DASH,
                "adapted, restricted": text(measured and measured.adapted_restricted, ".2f") if mixed else DASH,
                "validation": text(measured and measured.validation),
                "loss": text(measured and measured.train_loss, ".4f"),
                **to_target(row),
            }
        )
    notes = [
        f"Accuracy in percent ± standard error over clients. Measured: {_explained(rows[0].protocol)} It is the mean "
        "over the last rounds that the recipe evaluates. As is and adapted: all existing users after the last round. "
        "Loss: training loss of all existing users."
    ]
    if any(line["published"] != DASH for line in lines):
        notes.append(
            "In brackets: difference from the published figure, in standard errors of this difference. Only measured "
            "uses the protocol of the published figure."
        )
    return filled(lines, {*rows[0].at, "measured"}, [*notes, *[MIXED] * mixed, *target_notes(rows)])


def with_targets(rows: Sequence[Row], target: float | None) -> list[Row]:
    """Return the rows with the accuracy to reach.

    If `target` is None, it is the highest accuracy, rounded down to a tenth, that all rows with a curve have reached on
    the same data set and degree of personalization.
    """

    def place(row: Row) -> tuple[str | None, ...]:
        return row.at.get("data"), row.at.get("degree")

    ends: dict[Any, list[float]] = {}
    for row in rows:
        if row.curve and row.measured and row.measured.figure:
            ends.setdefault(place(row), []).append(row.measured.figure.mean)
    common = {where: math.floor(10 * min(found)) / 10 for where, found in ends.items()}
    return [
        replace(row, target=common.get(place(row)) if target is None else target) if row.curve else row for row in rows
    ]


def to_target(row: Row) -> dict[str, str]:
    """Return the columns on the way to the target."""
    missed = DASH if row.target is None else "not reached"
    return {
        "target": text(row.target, ".1f"),
        "rounds to target": missed if row.reached is None else count(row.reached.round),
        "bytes to target": missed if row.reached is None else scaled(row.reached.bytes, "B"),
    }


def target_notes(rows: Sequence[Row]) -> list[str]:
    """Return a note on the columns of `to_target`, if they are shown."""
    if all(row.target is None for row in rows):
        return []
    return [
        "Rounds and bytes to target: up to the first evaluated round whose accuracy is at least the target. Unless "
        "--target is given, the target is what all methods reach on the same data set and degree, rounded down."
    ]


def mixes_label_spaces(rows: Sequence[Row]) -> bool:
    """Return whether some rows choose among all classes and others among each client's own."""
    return len({row.labels for row in rows}) > 1


def cost(rows: Sequence[Row], reference: str) -> Table:
    """Return a table of seconds and operations per round, with their ratios to one method."""
    base = next((row for row in rows if row.at["method"] == reference), None)
    published = base.published_seconds if base else None
    measured = base.measured if base else None
    lines = []
    for row in rows:
        own = row.measured
        lines.append(
            {
                **row.at,
                "published": duration(row.published_seconds),
                f"/ {reference}": _ratio(row.published_seconds, published),
                "measured": row.told(duration(own and own.seconds)),
                f"/ {reference}, measured": _ratio(own and own.seconds, measured and measured.seconds),
                "FLOP a round": scaled(own and own.flops, ""),
                f"/ {reference}, FLOP": _ratio(own and own.flops, measured and measured.flops),
            }
        )
    return filled(lines, {*rows[0].at, "measured"}, ["Median over all rounds except the first."])


def filled(lines: Sequence[Mapping[str, str]], always: set[str], notes: Sequence[str]) -> Table:
    """Return a table of lines by heading. Columns that are empty are omitted unless they are in `always`."""
    kept = [key for key in lines[0] if key in always or any(line[key] != DASH for line in lines)]
    return Table(kept, [[line[key] for key in kept] for line in lines], notes=notes)


def text(value: Percentage | SeedMean | float | None, form: str = "") -> str:
    """Return the value as text, or a dash if it is None."""
    return DASH if value is None else format(value, form) if form else str(value)


def interval_notes(rows: Sequence[Row]) -> list[str]:
    """Return a note on what changes if the printed ± is a confidence interval, for papers that call it one."""
    found = [(row, row.measured.figure) for row in rows if row.measured and row.published and row.published.stderr]
    if not found:
        return []
    readings = [[row.difference(figure, of_one) or 0.0 for row, figure in found] for of_one in (1.0, INTERVAL)]
    beyond, largest = ([measure(map(abs, each)) for each in readings] for measure in (_beyond_two, max))
    return [
        f"The published ± is read as a standard error, although the paper calls it a confidence interval. Then "
        f"{beyond[0]} of {len(found)} measured figures differ by more than two standard errors from the published "
        f"ones, by at most {largest[0]:.1f}. If it is an interval of 95 %, {beyond[1]} do, by at most {largest[1]:.1f}."
    ]


INTERVAL = 1.96
"""Half the width of a 95 % confidence interval, in standard errors."""


def _beyond_two(differences: Iterable[float]) -> int:
    return sum(each > 2 for each in differences)


def _explained(protocol: str) -> str:
    return next(each.explanation for each in PROTOCOLS if each.key == f"existing.{protocol}")


def _ratio(above: float | None, below: float | None) -> str:
    return DASH if above is None or not below else f"{above / below:.2f}"
