"""Published and measured side by side: in the terminal, as Markdown, as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.lab.papers.measured import Measured, Percentage, over_seeds
from coterie.lab.papers.sheet import PublishedUsers
from coterie.lab.papers.users import Over, SeedMean, seed_mean
from coterie.measure.protocols import OF_ALL_CLIENTS, PROTOCOLS
from coterie.report.tables import Table
from coterie.report.units import DASH, duration, scaled


@dataclass(frozen=True)
class Row:
    """A cell of the paper's table, all seeds together."""

    at: Mapping[str, str]
    protocol: str
    published: Percentage | None
    published_seconds: float | None
    runs: Sequence[Measured]
    """Those that are finished."""
    state: str
    """Words for what is not; empty where all are."""
    users: PublishedUsers = field(default_factory=dict)
    """What is published of them."""
    seeds: Sequence[int] = ()
    """Of the runs."""
    diverged: bool = False
    """Whether one that is not finished never will be."""

    @property
    def measured(self) -> Measured | None:
        return over_seeds(self.runs)

    def difference(self, measured: Percentage | None) -> float | None:
        """Measured minus published, in units of the standard error of that difference."""
        if self.published is None or measured is None:
            return None
        error = math.hypot(measured.stderr, self.published.stderr)
        return (measured.mean - self.published.mean) / error if error else None

    def compared(self, measured: Percentage | None) -> str:
        """The figure, and how it differs."""
        difference = self.difference(measured)
        return text(measured) + ("" if difference is None else f" ({difference:+.1f})")

    def each(self, protocol: str, figure: str = "mean") -> dict[int, float]:
        """A figure over the users at the round that validation picks, by seed."""
        runs = zip(self.seeds, self.runs, strict=True)
        found = {seed: getattr(run.picked, protocol) for seed, run in runs if run.picked}
        return {seed: getattr(over, figure) for seed, over in found.items() if over is not None}

    def told(self, figure: str) -> str:
        """The figure, and what is missing."""
        return " ".join([figure] * bool(self.runs) + [f"({self.state})"] * bool(self.state))

    def as_dict(self) -> dict[str, Any]:
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
            },
            "difference": self.published
            and measured
            and {key: self.difference(getattr(measured, key)) for key in ("figure", "as_is", "adapted")},
            "users": self._users(),
        }

    def _users(self) -> dict[str, Any] | None:
        """By protocol and figure, over seeds."""
        if not any(run.picked for run in self.runs):
            return None
        names = [protocol.name for protocol in OF_ALL_CLIENTS]
        return {name: {figure: self._over_seeds(name, figure) for figure in Over._fields} for name in names}

    def _over_seeds(self, protocol: str, figure: str) -> dict[str, Any] | None:
        found = seed_mean(list(self.each(protocol, figure).values()))
        return found and found._asdict()


def accuracy(rows: Sequence[Row]) -> Table:
    """A line for each row; columns that no row fills are left out."""
    lines = []
    for row in rows:
        measured = row.measured
        lines.append(
            {
                **row.at,
                "published": text(row.published),
                "measured": row.told(row.compared(measured and measured.figure)),
                "over seeds": text(measured and measured.spread, ".2f"),
                "as is": row.compared(measured and measured.as_is),
                "adapted": row.compared(measured and measured.adapted),
                "validation": text(measured and measured.validation),
                "loss": text(measured and measured.train_loss, ".4f"),
            }
        )
    notes = [
        f"Accuracy in percent ± standard error over clients. Measured: {_explained(rows[0].protocol)} It is the mean "
        "over the rounds that the recipe evaluates at its end; as is and adapted are all clients after the last round, "
        "loss is the training loss over them."
    ]
    if any(line["published"] != DASH for line in lines):
        notes.append(
            "In brackets: how much more than published, in standard errors of that difference, be it of this protocol "
            "or of another."
        )
    return filled(lines, {*rows[0].at, "measured"}, notes)


def cost(rows: Sequence[Row], reference: str) -> Table:
    """Seconds and operations of a round, and their ratios to those of one method."""
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
    return filled(lines, {*rows[0].at, "measured"}, ["The median over the rounds after the first."])


def filled(lines: Sequence[Mapping[str, str]], always: set[str], notes: Sequence[str]) -> Table:
    """Of lines by heading; columns that no line fills are left out, but for those that are always there."""
    kept = [key for key in lines[0] if key in always or any(line[key] != DASH for line in lines)]
    return Table(kept, [[line[key] for key in kept] for line in lines], notes=notes)


def text(value: Percentage | SeedMean | float | None, form: str = "") -> str:
    return DASH if value is None else format(value, form) if form else str(value)


def _explained(protocol: str) -> str:
    return next(each.explanation for each in PROTOCOLS if each.key == f"existing.{protocol}")


def _ratio(above: float | None, below: float | None) -> str:
    return DASH if above is None or not below else f"{above / below:.2f}"
