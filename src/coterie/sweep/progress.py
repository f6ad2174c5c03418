"""The progress bars of a sweep: trials, and the rounds of the one that runs."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coterie.report.sweep_page import shown
from coterie.report.units import DASH, percent
from coterie.sweep.space import Point
from coterie.sweep.trial import Trial, complete


class SweepProgress:
    def __init__(self, console: Console, total: int, rounds: int, ended: list[Trial]) -> None:
        self._ended, self._console = list(ended), console
        self._bar = Progress(
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._trials = self._bar.add_task("trial", total=total, completed=len(ended), told=self._best())
        self._rounds = self._bar.add_task("round", total=rounds, told="")

    def __enter__(self) -> "SweepProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, number: int, point: Point) -> None:
        self._bar.reset(self._rounds, told=f"trial {number}")
        values = ", ".join(f"{key} = {shown(value)}" for key, value in point.items())
        self._console.print(f"trial {number}: {values}", highlight=False, markup=False)

    def advance(self, record: dict[str, Any]) -> None:
        self._bar.update(self._rounds, completed=record["round"])

    def end(self, trial: Trial) -> None:
        self._ended.append(trial)
        result = f"validation {percent(trial.score)} %" if trial.state == "complete" else trial.ending
        self._console.print(f"  {result}", highlight=False, markup=False)
        self._bar.update(self._trials, completed=len(self._ended), told=self._best())

    def _best(self) -> str:
        ranked = complete(self._ended)
        return f"best {percent(ranked[0].score) if ranked else DASH} %"
