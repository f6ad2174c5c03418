"""Campaigns: all runs of an experiment, each in its own folder. Interrupted campaigns continue where they stopped."""

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
from coterie.lab.papers.comparison import Row, with_targets
from coterie.lab.papers.experiment import SCALES, Cell, Experiment, Variant, cells
from coterie.lab.papers.figure import without_curve, write_figure
from coterie.lab.papers.kept import Kept
from coterie.lab.papers.measured import Measured, figures_of, is_finished
from coterie.lab.papers.numbers import stamp
from coterie.measure.record import Record
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.report.tables import Table
from coterie.report.units import DASH, duration
from coterie.storage.files import write_atomically
from coterie.storage.origin import first_difference, read_origin
from coterie.training import Training

DIVERGED = "diverged.txt"
"""File in the folder of a run that diverged, with the error message."""
BRIEF = 20.0
"""If the first round takes fewer seconds than this, the second one is timed, when caches are warm."""


class Estimate(NamedTuple):
    """Estimated duration of a cell."""

    cell: Cell
    rounds: int
    """Number of rounds that are left to play."""
    evaluations: int
    """Number of these rounds that are evaluated."""
    seconds: float
    """Seconds per round, or NaN if the first round diverges."""
    visits: float
    """Number of clients that are evaluated, relative to the size of a cohort."""

    @property
    def total(self) -> float:
        """Total seconds. Evaluating a client is assumed to take as long as a visit, because it has to adapt."""
        return self.seconds * (self.rounds + self.evaluations * self.visits)


def estimate_table(estimates: Sequence[Estimate]) -> Table:
    """Return a table of the estimates, with their sum."""
    lines = [[each.cell.name, str(each.rounds), duration(each.seconds), _minutes(each.total)] for each in estimates]
    total = sum(each.total for each in estimates if not math.isnan(each.total))
    lines.append(["total", "", "", _minutes(total)])
    return Table(["cell", "rounds", "per round", "minutes"], lines, "Still to run")


def _minutes(seconds: float) -> str:
    return DASH if math.isnan(seconds) else f"{seconds / 60:.1f}"


@dataclass
class Campaign:
    """The chosen cells of an experiment at one scale, stored under `out`."""

    name: str
    wanted: Mapping[str, Sequence[str]]
    """Chosen values, by axis of the experiment."""
    scale: str
    seeds: int
    out: Path
    changes: Sequence[str] = ()
    """Changes of the form `section.key=value`, for all cells."""
    target: float | None = None
    """Accuracy in percent that rounds and bytes are counted to; None means what all comparable methods reach."""

    def __post_init__(self) -> None:
        self._held: tuple[dict[str, Any], Federation] | None = None
        self._kept = Kept(self.out / "runs.json")
        self._optima = Optima()
        self.experiment: Experiment = registry.load("experiment", self.name)()
        self._variants = self.experiment.choose(self.name, self.wanted)
        self.rows = [cells(variant, self.scale, self.seeds, self.changes) for variant in self._variants]

    def missing(self) -> list[Cell]:
        """Return the cells that are not finished, ordered by seed. Raises UserError if a folder has another recipe."""
        for cell in self._cells:
            if difference := self._difference(cell):
                what = f"{self.folder(cell)} was run with another recipe: {difference}"
                raise UserError(f"{what}; use the same settings, or choose another --out")
        return [cell for cell in sorted(self._cells, key=lambda cell: cell.recipe.run.seed) if not self._ended(cell)]

    def folder(self, cell: Cell) -> Path:
        """Return the folder of a cell's run."""
        return self.out / cell.name

    def estimates(self, missing: Sequence[Cell], should_stop: Callable[[], bool]) -> Iterator[Estimate]:
        """Time one round of each cell and discard it. Raises KeyboardInterrupt when told to stop."""
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
        """Prepare the training of a cell for `play`. It continues if the folder of the cell exists."""
        folder = self.folder(cell)
        resume = (folder / "recipe.toml").exists()
        training = Training(cell.recipe, self._federation(cell), folder, resume=resume)
        if not resume:
            stamp(folder)
        return training

    def play(
        self, cell: Cell, training: Training, on_round: Callable[[Record], object], should_stop: Callable[[], bool]
    ) -> None:
        """Train a cell until it is finished or diverges."""
        try:
            with self._optima:
                training.play(on_round, should_stop)
        except DivergedError as error:
            write_atomically(self.folder(cell) / DIVERGED, f"{error}\n".encode())

    def report(self) -> Table:
        """Return the table of the chosen rows and of all other rows that were measured under `out`.

        Also writes table.md, table.json and runs.json. The latter has the figures and curves of single runs, so that
        run folders need not be kept. If the experiment has a figure, figure.svg and page.html show it.
        """
        self._check_folder()
        rows = with_targets(self.measured(), self.target)
        plain = self.experiment.table(rows)
        panels, missing = self.experiment.figure(rows), without_curve(rows)
        table = replace(plain, title=self._title, notes=[*plain.notes, *self._notes(), *(missing if panels else [])])
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
        if panels:
            write_figure(self.out, self._title, [], [table], panels, missing)
        return table

    def measured(self) -> list[Row]:
        """Return the chosen rows, and all other rows that were measured under `out`, with the figures of their runs."""
        self._kept.refresh()
        chosen = {row[0].row: row for row in self.rows}
        shown = [chosen.get(variant.row) or self._earlier(variant) for variant in self.experiment.variants()]
        return [self._row(row) for row in shown if row]

    def finished(self) -> list[tuple[Cell, Measured]]:
        """Return the chosen cells that are measured, with their figures."""
        return [(cell, self._figures(cell)) for cell in self._cells if self._finished(cell)]

    def _check_folder(self) -> None:
        """Raise UserError if the folder has a table of another experiment or scale, which must not be overwritten."""
        written = self.out / "table.json"
        there = json.loads(written.read_text()) if written.exists() else {}
        name, scale = there.get("experiment", self.name), there.get("scale", self.scale)
        if (name, scale) != (self.name, self.scale):
            raise UserError(f"{self.out} has the table of {name} at --scale {scale}; use that, or choose another --out")
        for scale in SCALES:
            if scale != self.scale and self._is_of(scale):
                raise UserError(f"the runs under {self.out} are of --scale {scale}; use that, or choose another --out")

    def _is_of(self, scale: str) -> bool:
        """Return whether a chosen run that is finished has the recipe of another scale instead of this one."""
        for variant, row in zip(self._variants, self.rows, strict=True):
            if any(self._finished(cell) and self._difference(cell) for cell in row):
                others = cells(variant, scale, self.seeds, self.changes)
                if any(self._finished(cell) and not self._difference(cell) for cell in others):
                    return True
        return False

    @property
    def _title(self) -> str:
        what = (self.experiment.__doc__ or self.name).splitlines()[0].rstrip(".")
        return f"{what} ({self.scale} scale)"

    def _notes(self) -> list[str]:
        """Return what readers of the table must know."""
        notes = (
            [] if self.scale == "full" else ["At this scale the results cannot be compared with the published ones."]
        )
        if drawn := sorted({cell.recipe.eval.clients for cell in self._cells if cell.recipe.eval.clients}):
            notes.append(f"Evaluated: a random sample of {' or '.join(map(str, drawn))} clients.")
        if self.changes:
            notes.append(f"Changed in all runs: {', '.join(self.changes)}.")
        for cell in self._cells:
            if difference := self._difference(cell):
                notes.append(f"{cell.name} was run with another recipe: {difference}.")
        return notes

    def _earlier(self, variant: Variant) -> list[Cell]:
        """Return the cells of a row that is not chosen now, if it was measured before with the same settings."""
        if variant.row not in self._kept and not any(self.out.glob(f"{variant.row}-seed*")):
            return []
        try:
            row = cells(variant, self.scale, self.seeds, self.changes)
        except UserError:  # these changes do not apply to it
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
            labels=first.labels,
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
        """Return how the recipe that a cell was run with differs from its recipe now, or an empty string.

        Settings that are newer than the run have their defaults.
        """
        folder = self.folder(cell)
        begun = (folder / "recipe.toml").exists()
        there = Recipe.parse(read_origin(folder).recipe).as_dict() if begun else self._kept.recipe(cell)
        return first_difference(there, cell.recipe.as_dict()) if there else ""

    def _federation(self, cell: Cell) -> Federation:
        """Return the federation of a cell. Consecutive cells on the same data share it."""
        tree = cell.recipe.as_dict()
        key = {"data": tree["data"], "partition": tree["partition"], "seed": cell.recipe.run.seed}
        if self._held is None or self._held[0] != key:
            self._held = None  # there may not be enough memory for both
            self._held = key, cell.recipe.federation()
        return self._held[1]


def _timed_round(recipe: Recipe, federation: Federation) -> tuple[float, int]:
    """Return the seconds of a round and the size of its cohort."""
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
