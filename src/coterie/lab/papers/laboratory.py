"""Experiments that are no campaign of run folders: measurements, each kept as a JSON file and made once."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.errors import UserError
from coterie.lab.papers.experiment import check_scale, choose
from coterie.recipe import Recipe
from coterie.report.tables import Table
from coterie.storage.files import write_atomically
from coterie.storage.folder import first_difference

Result = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    at: Mapping[str, str]
    """Where it lies: the value on each axis of the experiment."""
    recipe: Recipe

    @property
    def name(self) -> str:
        """Of its file."""
        return "-".join(value for value in self.at.values() if value).replace(" ", "-")


@dataclass
class Laboratory(ABC):
    """The chosen measurements of an experiment. The first line of the docstring says which; all lie under `out`."""

    name: str
    wanted: Mapping[str, Sequence[str]]
    """Values on axes of the experiment."""
    scale: str
    seeds: int
    out: Path
    changes: Sequence[str] = ()
    """`section.key=value`, for all measurements."""

    def __post_init__(self) -> None:
        check_scale(self.scale)

    @abstractmethod
    def everything(self) -> list[Measurement]:
        """There is, at this scale, in the order of the tables."""

    @abstractmethod
    def result(self, measurement: Measurement, should_stop: Callable[[], bool]) -> Result:
        """To be kept. KeyboardInterrupt when told to stop."""

    @abstractmethod
    def tables(self, results: Mapping[str, Result]) -> list[Table]:
        """Of the results by the names of their measurements, as far as they exist."""

    @abstractmethod
    def page(self, results: Mapping[str, Result], tables: Sequence[Table]) -> str:
        """The same, and curves, as HTML."""

    @cached_property
    def chosen(self) -> list[Measurement]:
        return choose(self.everything(), self.name, self.wanted)

    def missing(self) -> list[Measurement]:
        """One that was made with another recipe is the user's to sort out."""
        return [each for each in self.chosen if self._kept(each) is None]

    def measure(self, measurement: Measurement, should_stop: Callable[[], bool]) -> None:
        content = {"recipe": measurement.recipe.as_dict(), **self.result(measurement, should_stop)}
        path = self._path(measurement)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(content, separators=(",", ":")) + "\n").encode())

    def report(self) -> list[Table]:
        """What is measured by now; also written to table.md and page.html."""
        results = {each.name: kept for each in self.chosen if (kept := self._kept(each)) is not None}
        if not results:
            raise UserError(f"nothing of it is measured under {self.out}; leave out --only-table to measure it")
        tables = self.tables(results)
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / "table.md", "\n".join(table.markdown() for table in tables).encode())
        write_atomically(self.out / "page.html", self.page(results, tables).encode())
        return tables

    def _path(self, measurement: Measurement) -> Path:
        return self.out / "measured" / f"{measurement.name}.json"

    def _kept(self, measurement: Measurement) -> Result | None:
        path = self._path(measurement)
        if not path.exists():
            return None
        content: Result = json.loads(path.read_text())
        if difference := first_difference(content.pop("recipe"), measurement.recipe.as_dict()):
            raise UserError(f"{path} was made with another recipe: {difference}; set it alike, or choose another --out")
        return content
