"""Progress bars of a run: for its rounds, and for clients that are being evaluated or prepared."""

import logging
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from coterie.clients.clients import Clients
from coterie.measure.record import Record
from coterie.server.rounds import Rounds

logger = logging.getLogger("coterie")


WIDE = 72
"""Number of columns of a terminal in which the remaining time is shown, too."""


class Bars:
    """Progress bars that show counts, a short message and the remaining time."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            *([TextColumn("left"), TimeRemainingColumn()] if console.width >= WIDE else []),
            console=console,
            disable=quiet,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop updating the bars."""
        self._bar.stop()


class RunProgress(Bars):
    """Progress of a run: its rounds, the clients that prepare before their first round, and evaluations."""

    def __init__(self, console: Console, clients: Clients, rounds: Rounds, quiet: bool) -> None:
        super().__init__(console, quiet)
        self._console, self._quiet = console, quiet
        self._score, self._latest = rounds.task.objective.score, {"loss": "-", "score": "-"}
        done = len(rounds.history)
        self._task = self._bar.add_task("round", total=rounds.num_rounds, completed=done, told=self._told())
        self._preparing = self._bar.add_task(
            "client", total=len(clients.ids), told="clients prepared", start=False, visible=False
        )
        self._evaluating = self._bar.add_task("evaluating", total=None, told="", start=False, visible=False)
        clients.on_prepared, clients.on_scored = self._prepared, self._scored
        rounds.on_evaluate = self._evaluate

    def advance(self, record: Record) -> None:
        """Show that a round has ended."""
        if record.train_loss is not None:
            self._latest["loss"] = f"{record.train_loss:.4f}"
        if record.eval is not None:
            mean = record.eval.existing.as_is.mean
            self._latest["score"] = "-" if mean is None else f"{100 * mean:.1f} %"
        self._bar.update(self._task, completed=record.round, told=self._told())
        self._bar.update(self._preparing, visible=False)
        self._bar.update(self._evaluating, visible=False)
        if record.eval is not None and not self._quiet and not logger.isEnabledFor(logging.INFO):
            self._console.print(record.told(self._score), highlight=False)  # otherwise the log has this line

    def _prepared(self, clients: int) -> None:
        """Show a second bar while clients prepare. For neural networks this can take longer than a round."""
        self._bar.start_task(self._preparing)
        self._bar.update(self._preparing, completed=clients, visible=True)

    def _evaluate(self, clients: int) -> None:
        """Show a bar while clients are evaluated, which can take longer than a round."""
        self._bar.reset(self._evaluating, total=clients, visible=True)

    def _scored(self, clients: int) -> None:
        self._bar.advance(self._evaluating, clients)

    def _told(self) -> str:
        return f"loss {self._latest['loss']}  {self._score} {self._latest['score']}"


def on_stderr(clients: Clients, rounds: Rounds, wanted: bool | None) -> RunProgress:
    """Return the progress of a run on stderr. If `wanted` is None, it is shown if stderr is a terminal."""
    console = Console(stderr=True)
    return RunProgress(console, clients, rounds, quiet=not (console.is_terminal if wanted is None else wanted))
