"""Results of a benchmark: seconds, ratios between them, and targets for these ratios."""

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Group
from rich.table import Table

from benchmarks.timing import Seconds
from coterie.report.units import duration


@dataclass(frozen=True)
class Figure:
    """A measured ratio or peak memory, with its target if it has one."""

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        """Whether the target is met, or None without a target."""
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    @property
    def target(self) -> str:
        """The target in words."""
        bounds = (("at most", self.at_most), ("at least", self.at_least))
        return " and ".join(f"{word} {bound:g}{self.unit}" for word, bound in bounds if bound is not None)

    def row(self) -> tuple[str, str, str, str]:
        """Return the cells of a line in the printed table."""
        mark = {None: "", True: "[green]✓[/]", False: "[red]✗[/]"}[self.met]
        return self.what, f"{self.value:.3g}{self.unit}", self.target, mark

    def as_dict(self) -> dict[str, Any]:
        """Return the figure for a JSON file."""
        bounds = {"at_most": self.at_most, "at_least": self.at_least, "met": self.met}
        known = {key: value for key, value in bounds.items() if value is not None}
        return {"what": self.what, "value": self.value, "unit": self.unit, **known}


@dataclass(frozen=True)
class Result:
    """Result of one benchmark."""

    title: str
    seconds: Seconds
    figures: Sequence[Figure]
    notes: Sequence[str] = ()

    def printed(self) -> Group:
        """Return a table for the terminal: medians of the seconds first, then the figures."""
        table = Table()
        table.add_column("")
        table.add_column("measured", justify="right")
        table.add_column("target", justify="right")
        table.add_column("")
        for name, each in self.seconds.items():
            table.add_row(name, duration(statistics.median(each)), "", "")
        table.add_section()
        for figure in self.figures:
            table.add_row(*figure.row())
        return Group(f"\n[bold]{self.title}[/]", table, *self.notes)

    def write(self, path: Path) -> None:
        """Write the result as JSON, with facts about the machine."""
        machine = {"cpus": os.cpu_count(), "threads": torch.get_num_threads(), "torch": torch.__version__}
        content = {
            "title": self.title,
            **machine,
            "figures": [figure.as_dict() for figure in self.figures],
            "notes": list(self.notes),
            "seconds": self.seconds,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n")


def ratio(seconds: Seconds, above: str, below: str) -> float:
    """Return the ratio of two medians."""
    return statistics.median(seconds[above]) / statistics.median(seconds[below])
