"""Stored results: the lines of the tables in `results/`, with the figures of single runs where they are stored."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie import registry
from coterie.errors import UserError
from coterie.lab.claims.declared import Folder, Where, folder, folders
from coterie.lab.papers.campaign import Campaign
from coterie.lab.papers.comparison import Row
from coterie.lab.papers.laboratory import Laboratory
from coterie.lab.papers.measured import Measured
from coterie.lab.papers.numbers import Change, later
from coterie.lab.papers.rates import best

Values = Mapping[int | None, float]
"""A figure by seed. The only key is None if it does not depend on a seed."""
PRINTED = "printed"
"""First part of the name of a figure that the paper prints."""


@dataclass(frozen=True)
class Line:
    """A line of a stored table."""

    at: Mapping[str, str]
    """Value on each axis of the experiment, or in each column of the table."""
    row: Row | None = None
    """The runs behind the line. A table that is stored as text has none."""

    def values(self, figure: str) -> Values:
        """Return a figure by seed."""
        name, _, rest = figure.partition(".")
        if self.row is None:
            return {None: _number(self.at[figure])}
        if name == PRINTED:
            return {None: _printed(self.row, rest)}
        runs = zip(self.row.seeds, self.row.runs, strict=True)
        return {seed: _figure(run, figure) for seed, run in runs}

    def error(self, figure: str) -> float | None:
        """Return the standard error of a figure, or None if it is not known.

        It is that over clients for a figure of single runs that ends in "mean", and that over seeds in a table.
        """
        if self.row is None:
            _, sign, error = self.at[figure].partition(" ± ")
            return _number(error) if sign else 0.0
        if figure == PRINTED:
            return self.row.published.stderr if self.row.published else None
        name, _, rest = figure.partition(".")
        found = getattr(self.row.measured, name, None) if rest == "mean" else None
        return getattr(found, "stderr", None)

    def matches(self, where: Where) -> bool:
        """Return whether the line has these values."""
        return matches(self.at, where)

    @property
    def changes(self) -> Sequence[Change]:
        """Changes of the code since the line was measured that concern it."""
        if self.row is None:
            return later(0, self.at.get("method", ""))
        return later(min(run.numbers for run in self.row.runs), self.row.at["method"])


@dataclass
class Results:
    """The folder `results/` of a checkout."""

    root: Path
    _lines: dict[str, list[Line]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not any((self.root / name).exists() for name in folders()):
            raise UserError(
                f"{self.root} has no stored results. They are in the folder results of a checkout of Coterie and not "
                "in the installed package; run the command in a checkout, or pass --results DIR"
            )

    def lines(self, name: str, best_rate: bool = False) -> list[Line]:
        """Return the finished lines of a folder. `best_rate` selects the best of lines that differ in their rate."""
        if name not in self._lines:
            declared = folder(name)
            self._lines[name] = self._table(name) if declared.tables else self._runs(name)
        found = self._lines[name]
        return [Line(row.at, row) for row in best([line.row for line in found if line.row])] if best_rate else found

    def seeds(self, name: str) -> int:
        """Return the largest number of seeds of a stored line."""
        file = self.root / name / "runs.json"
        if not file.exists():
            return folder(name).seeds
        return max(len(row["seeds"]) for row in json.loads(file.read_text()).values())

    def declared(self, name: str) -> Folder:
        """Return the declaration of a folder, with the number of seeds that are stored."""
        return replace(folder(name), seeds=self.seeds(name))

    def campaign(self, name: str, out: Path | None = None) -> Campaign:
        """Return the campaign of a folder. Its runs are stored under `out`, which is the folder itself by default."""
        campaign = self.declared(name).campaign(out or self.root / name)
        assert isinstance(campaign, Campaign)
        return campaign

    def campaigns(self) -> list[str]:
        """Return the names of the folders that store the figures of single runs."""
        return [
            name
            for name, each in folders().items()
            if not each.tables and not issubclass(registry.load("experiment", each.experiment), Laboratory)
        ]

    def _runs(self, name: str) -> list[Line]:
        if not (self.root / name / "runs.json").exists():
            raise UserError(f"{self.root / name / 'runs.json'} is missing; restore it, or measure it again")
        return [Line(row.at, row) for row in self.campaign(name).measured() if row.runs]

    def _table(self, name: str) -> list[Line]:
        file = self.root / name / "table.md"
        if not file.exists():
            raise UserError(f"{file} is missing; restore it, or measure it again")
        return [Line(line) for line in read_tables(file.read_text())]


def _figure(run: Measured, name: str) -> float:
    value: Any = run
    for part in name.split("."):
        value = getattr(value, part)
    return float(value)


def matches(at: Mapping[str, str], where: Where) -> bool:
    """Return whether a place has these values on its axes."""
    return all(at.get(axis) in ([wanted] if isinstance(wanted, str) else wanted) for axis, wanted in where.items())


def read_tables(text: str) -> list[dict[str, str]]:
    """Return the lines of all Markdown tables in a text, by heading."""
    found: list[dict[str, str]] = []
    headings: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            headings = []
        elif not headings:
            headings = cells
        elif not set("".join(cells)) <= {"-", ":", " "}:
            found.append(dict(zip(headings, cells, strict=True)))
    return found


def _number(text: str) -> float:
    """Return the first number of a cell such as "52.3 ± 2.5"."""
    found = re.match(r"[+-]?[\d.]+(?:e[+-]?\d+)?", text)
    if not found:
        raise UserError(f"{text!r} in a stored table is not a number; write the table again")
    return float(found[0])


def _printed(row: Row, rest: str) -> float:
    if rest == "seconds" and row.published_seconds is not None:
        return row.published_seconds
    if rest and rest in row.users:
        return row.users[rest][0]
    if not rest and row.published:
        return row.published.mean
    raise UserError(f"the paper prints no {rest or 'accuracy'} for {' '.join(row.at.values())}; correct the claim")
