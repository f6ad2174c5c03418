"""Progress bars of a sweep: one for trials, and one for the rounds of the running trial."""

from rich.console import Console

from coterie.lab.sweep.space import Point, shown
from coterie.lab.sweep.trial import Trial, complete
from coterie.measure.record import Record
from coterie.report.units import DASH, percent
from coterie.track.bars import Bars


class SweepProgress(Bars):
    """Progress of a sweep."""

    def __init__(self, console: Console, total: int, rounds: int, ended: list[Trial]) -> None:
        super().__init__(console)
        self._ended, self._console = list(ended), console
        self._trials = self._bar.add_task("trial", total=total, completed=len(ended), told=self._best())
        self._rounds = self._bar.add_task("round", total=rounds, told="")

    def begin(self, number: int, point: Point) -> None:
        """Show that a trial starts."""
        self._bar.reset(self._rounds, told=f"trial {number}")
        values = ", ".join(f"{key} = {shown(value)}" for key, value in point.items())
        self._console.print(f"trial {number}: {values}", highlight=False, markup=False)

    def advance(self, record: Record) -> None:
        """Show that a round of the running trial has ended."""
        self._bar.update(self._rounds, completed=record.round)

    def end(self, trial: Trial) -> None:
        """Show how a trial ended."""
        self._ended.append(trial)
        result = f"validation {percent(trial.score)} %" if trial.state == "complete" else trial.ending
        self._console.print(f"  {result}", highlight=False, markup=False)
        self._bar.update(self._trials, completed=len(self._ended), told=self._best())

    def _best(self) -> str:
        ranked = complete(self._ended)
        return f"best {percent(ranked[0].score) if ranked else DASH} %"
