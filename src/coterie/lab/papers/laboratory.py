"""Experiments that consist of measurements instead of runs. Each result is stored as a JSON file."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.errors import UserError
from coterie.lab.papers.experiment import check_scale, choose
from coterie.lab.papers.figure import write_figure
from coterie.lab.papers.numbers import VERSION
from coterie.recipe import Recipe
from coterie.report.panels import Panel
from coterie.report.tables import Table
from coterie.storage.files import write_atomically
from coterie.storage.origin import first_difference

Result = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """One measurement of an experiment."""

    at: Mapping[str, str]
    """Value on each axis of the experiment."""
    recipe: Recipe

    @property
    def name(self) -> str:
        """Name of the file with the result, without its suffix."""
        return "-".join(value for value in self.at.values() if value).replace(" ", "-")


@dataclass
class Laboratory(ABC):
    """The chosen measurements of an experiment, stored under `out`. The first line of the docstring is its title."""

    name: str
    wanted: Mapping[str, Sequence[str]]
    """Chosen values, by axis of the experiment."""
    scale: str
    seeds: int
    out: Path
    changes: Sequence[str] = ()
    """Changes of the form `section.key=value`, for all measurements."""

    def __post_init__(self) -> None:
        check_scale(self.scale)

    @abstractmethod
    def everything(self) -> list[Measurement]:
        """Return all measurements at this scale, in the order of the tables."""

    @abstractmethod
    def result(self, measurement: Measurement, should_stop: Callable[[], bool]) -> Result:
        """Make a measurement and return its result. Raises KeyboardInterrupt when told to stop."""

    @abstractmethod
    def tables(self, results: Mapping[str, Result]) -> list[Table]:
        """Return the tables of the results so far, which are given by the names of their measurements."""

    @abstractmethod
    def panels(self, results: Mapping[str, Result]) -> list[list[Panel]]:
        """Return the panels of the figure, in rows."""

    @abstractmethod
    def facts(self) -> list[str]:
        """Return short facts for the head of the page."""

    @cached_property
    def chosen(self) -> list[Measurement]:
        """Measurements that have the wanted values."""
        return choose(self.everything(), self.name, self.wanted)

    def missing(self) -> list[Measurement]:
        """Return the measurements without a result. Raises UserError if a result was made with another recipe."""
        return [each for each in self.chosen if self._kept(each) is None]

    def measure(self, measurement: Measurement, should_stop: Callable[[], bool]) -> None:
        """Make a measurement and store its result."""
        content = {"recipe": measurement.recipe.as_dict(), "numbers": VERSION, **self.result(measurement, should_stop)}
        path = self._path(measurement)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(content, separators=(",", ":")) + "\n").encode())

    def report(self) -> list[Table]:
        """Return the tables of all results so far. Also writes table.md, page.html and figure.svg."""
        results = {each.name: kept for each in self.chosen if (kept := self._kept(each)) is not None}
        if not results:
            raise UserError(f"{self.out} has no results yet; omit --only-table to measure them")
        tables = self.tables(results)
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / "table.md", "\n".join(table.markdown() for table in tables).encode())
        what = (self.__doc__ or self.name).splitlines()[0].rstrip(".")
        write_figure(self.out, what, self.facts(), tables, self.panels(results))
        return tables

    def _path(self, measurement: Measurement) -> Path:
        return self.out / "measured" / f"{measurement.name}.json"

    def _kept(self, measurement: Measurement) -> Result | None:
        path = self._path(measurement)
        if not path.exists():
            return None
        content: Result = json.loads(path.read_text())
        content.pop("numbers", None)
        before = Recipe.parse(content.pop("recipe")).as_dict()  # settings that are newer have their defaults
        if difference := first_difference(before, measurement.recipe.as_dict()):
            raise UserError(
                f"{path} was made with another recipe: {difference}; use the same settings, or choose another --out"
            )
        return content
