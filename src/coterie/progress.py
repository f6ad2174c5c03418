"""The progress bar of a run: loss, score, time left."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class RunProgress:
    def __init__(self, console: Console, rounds: int, done: int, score: str, quiet: bool) -> None:
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn(f"loss {{task.fields[loss]}}  {score} {{task.fields[score]}}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet,
        )
        self._task = self._bar.add_task("", total=rounds, completed=done, loss="-", score="-")

    def __enter__(self) -> "RunProgress":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def advance(self, record: dict[str, Any]) -> None:
        if record["train_loss"] is not None:
            self._bar.update(self._task, loss=f"{record['train_loss']:.4f}")
        if "eval" in record:
            mean = record["eval"]["existing"]["as_is"]["mean"]
            self._bar.update(self._task, score="-" if mean is None else f"{100 * mean:.1f} %")
        self._bar.update(self._task, completed=record["round"])

    def stop(self) -> None:
        self._bar.stop()
