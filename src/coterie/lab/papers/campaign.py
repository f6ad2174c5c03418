"""Many runs, each in a folder of its own: what is missing, how long it will take, and going on where it stopped."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie import registry
from coterie.core.steps.control import Optima
from coterie.data.federation import Federation
from coterie.errors import DivergedError, UserError
from coterie.lab.endless import endless
from coterie.lab.papers.comparison import Row
from coterie.lab.papers.experiment import Cell, Experiment, Variant, cells
from coterie.lab.papers.kept import Kept
from coterie.lab.papers.measured import Measured, figures_of, is_finished
from coterie.measure.record import Record
from coterie.recipe import Recipe, load
from coterie.report.tables import Table
from coterie.report.units import DASH, duration
from coterie.storage.files import write_atomically
from coterie.storage.folder import first_difference
from coterie.training import Training, prepare

DIVERGED = "diverged.txt"
"""Beside the files of a run that left the finite numbers: what it said."""
BRIEF = 20.0
"""A first round that takes fewer seconds is not what is told: the second one is, when everything is warm."""


class Estimate(NamedTuple):
    cell: Cell
    rounds: int
    """That are left to play, of a run that was begun."""
    evaluations: int
    """Among them."""
    seconds: float
    """A round; not a number where the first one diverges."""
    visits: float
    """Clients evaluated, over clients of a round."""

    @property
    def total(self) -> float:
        """An evaluation counts as a visit to each client that is evaluated: what adaptation costs."""
        return self.seconds * (self.rounds + self.evaluations * self.visits)


def estimate_table(estimates: Sequence[Estimate]) -> Table:
    """Cell by cell, and in all."""
    lines = [[each.cell.name, str(each.rounds), duration(each.seconds), _minutes(each.total)] for each in estimates]
    total = sum(each.total for each in estimates if not math.isnan(each.total))
    return Table(["cell", "rounds", "a round", "minutes"], [*lines, ["all", "", "", _minutes(total)]], "Still to run")


def _minutes(seconds: float) -> str:
    return DASH if math.isnan(seconds) else f"{seconds / 60:.1f}"


@dataclass
class Campaign:
    """The chosen cells of an experiment, at one scale; all of them lie under `out`."""

    name: str
    wanted: Mapping[str, Sequence[str]]
    """Values on axes of the experiment."""
    scale: str
    seeds: int
    out: Path
    changes: Sequence[str] = ()
    """`section.key=value`, for all cells."""

    def __post_init__(self) -> None:
        self._held: tuple[dict[str, Any], Federation] | None = None
        self._kept = Kept(self.out / "runs.json")
        self._optima = Optima()
        self.experiment: Experiment = registry.load("experiment", self.name)()
        variants = self.experiment.choose(self.name, self.wanted)
        self.rows = [cells(variant, self.scale, self.seeds, self.changes) for variant in variants]

    def missing(self) -> list[Cell]:
        """Cells that are not finished, seed by seed. One that was run with another recipe is the user's to sort out."""
        for cell in self._cells:
            if difference := self._difference(cell):
                what = f"{self.folder(cell)} was run with another recipe: {difference}"
                raise UserError(f"{what}; set it alike, or choose another --out")
        return [cell for cell in sorted(self._cells, key=lambda cell: cell.recipe.run.seed) if not self._ended(cell)]

    def folder(self, cell: Cell) -> Path:
        return self.out / cell.name

    def estimates(self, missing: Sequence[Cell], should_stop: Callable[[], bool]) -> Iterator[Estimate]:
        """Each from a round that is played and thrown away. KeyboardInterrupt when told to stop."""
        for cell in missing:
            if should_stop():
                raise KeyboardInterrupt
            run, done = cell.recipe.run, self._rounds(cell)
            federation = self._federation(cell)
            with self._optima:
                seconds, cohort = _timed_round(endless(cell.recipe), federation)
            left = range(done + 1, run.rounds + 1)
            due = [n for n in left if n % run.eval_every == 0 or n > run.rounds - run.eval_last]
            evaluated = min(cell.recipe.eval.clients or len(federation.existing), len(federation.existing))
            yield Estimate(cell, len(left), len(due), seconds, evaluated / max(1, cohort))

    def training(self, cell: Cell) -> Training:
        """To be played by `play`; it goes on where the cell's folder ends."""
        folder = self.folder(cell)
        return Training(cell.recipe, self._federation(cell), folder, resume=(folder / "recipe.toml").exists())

    def play(
        self, cell: Cell, training: Training, on_round: Callable[[Record], object], should_stop: Callable[[], bool]
    ) -> None:
        """To the end, which may be that it diverges."""
        try:
            with self._optima:
                training.play(on_round, should_stop)
        except DivergedError as error:
            write_atomically(self.folder(cell) / DIVERGED, f"{error}\n".encode())

    def report(self) -> Table:
        """Published beside what is measured by now, of the chosen rows and of all others that lie under `out`; also
        written to table.md and table.json. In runs.json are the figures of the single runs: with it, run folders need
        not be kept."""
        self._kept.refresh()
        chosen = {row[0].row: row for row in self.rows}
        shown = [chosen.get(variant.row) or self._earlier(variant) for variant in self.experiment.variants()]
        rows = [self._row(row) for row in shown if row]
        plain = self.experiment.table(rows)
        table = replace(plain, title=self._title, notes=[*plain.notes, *self._notes()])
        content = {
            "experiment": self.name,
            "scale": self.scale,
            "changes": list(self.changes),
            "notes": table.notes,
            "rows": [row.as_dict() for row in rows],
        }
        self.out.mkdir(parents=True, exist_ok=True)
        write_atomically(self.out / "table.md", table.markdown().encode())
        write_atomically(self.out / "table.json", (json.dumps(content, indent=2) + "\n").encode())
        self._kept.write()
        return table

    @property
    def _title(self) -> str:
        what = (self.experiment.__doc__ or self.name).splitlines()[0].rstrip(".")
        return f"{what} ({self.scale} scale)"

    def _notes(self) -> list[str]:
        """What a reader of the figures must know."""
        notes = [] if self.scale == "full" else ["At this scale the figures are not the paper's to meet."]
        if drawn := sorted({cell.recipe.eval.clients for cell in self._cells if cell.recipe.eval.clients}):
            notes.append(f"Of all clients {' or '.join(map(str, drawn))}, drawn at random, are evaluated.")
        if self.changes:
            notes.append(f"Changed in all of them: {', '.join(self.changes)}.")
        for cell in self._cells:
            if difference := self._difference(cell):
                notes.append(f"{cell.name} was run with another recipe: {difference}.")
        return notes

    def _earlier(self, variant: Variant) -> list[Cell]:
        """A row that is not asked for now, if it was measured before with settings like these; else nothing."""
        if variant.row not in self._kept and not any(self.out.glob(f"{variant.row}-seed*")):
            return []
        try:
            row = cells(variant, self.scale, self.seeds, self.changes)
        except UserError:  # such changes are not for it
            return []
        return row if any(self._finished(cell) and not self._difference(cell) for cell in row) else []

    def _row(self, row: Sequence[Cell]) -> Row:
        done = [cell for cell in row if self._finished(cell)]
        states = [self._state(cell) for cell in row if cell not in done]
        if len(row) > 1 and states:
            states.insert(0, f"{len(done)} of {len(row)} seeds")
        first, runs = row[0], [self._figures(cell) for cell in done]
        state, seeds = "; ".join(dict.fromkeys(states)), [cell.recipe.run.seed for cell in done]
        diverged = any((self.folder(cell) / DIVERGED).exists() for cell in row)
        return Row(
            first.at,
            first.protocol,
            first.published,
            first.published_seconds,
            runs,
            state,
            first.users,
            seeds,
            diverged=diverged,
        )

    def _figures(self, cell: Cell) -> Measured:
        kept = self._kept.measured(cell)
        if is_finished(self.folder(cell)):
            kept = figures_of(self.folder(cell), cell.protocol)
            if not self._difference(cell):
                self._kept.keep(cell, kept)
        assert kept is not None
        return kept

    def _state(self, cell: Cell) -> str:
        folder = self.folder(cell)
        if (folder / DIVERGED).exists():
            return f"diverged, {(folder / DIVERGED).read_text().partition(':')[0]}"
        done = self._rounds(cell)
        return f"{done} of {cell.recipe.run.rounds} rounds" if done else "not run"

    @property
    def _cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row]

    def _ended(self, cell: Cell) -> bool:
        return self._finished(cell) or (self.folder(cell) / DIVERGED).exists()

    def _finished(self, cell: Cell) -> bool:
        return is_finished(self.folder(cell)) or self._kept.measured(cell) is not None

    def _rounds(self, cell: Cell) -> int:
        log = self.folder(cell) / "rounds.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def _difference(self, cell: Cell) -> str:
        """Between the recipe that a cell was run with, if it was, and the cell's; settings younger than the run have
        their defaults in it."""
        written = self.folder(cell) / "recipe.toml"
        there = Recipe.parse(load(written)).as_dict() if written.exists() else self._kept.recipe(cell)
        return first_difference(there, cell.recipe.as_dict()) if there else ""

    def _federation(self, cell: Cell) -> Federation:
        """Cells on the same data follow one another, and the data are dealt once for them."""
        tree = cell.recipe.as_dict()
        key = {"data": tree["data"], "partition": tree["partition"], "seed": cell.recipe.run.seed}
        if self._held is None or self._held[0] != key:
            self._held = None  # there may not be room for both
            self._held = key, cell.recipe.federation()
        return self._held[1]


def _timed_round(recipe: Recipe, federation: Federation) -> tuple[float, int]:
    """(seconds, clients in it)."""
    run = prepare(recipe, federation)
    try:
        for record in run.rounds.play():
            seconds = record.cost.seconds
            if seconds > BRIEF or record.round > 1:
                return seconds, len(record.cohort)
    except DivergedError:
        pass
    finally:
        run.clients.close()
    return math.nan, 1
