"""Trials of a sweep and how they ended."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.lab.sweep.space import Point

State = Literal["complete", "pruned", "diverged", "failed"]


@dataclass(frozen=True)
class Trial:
    """An ended trial."""

    number: int
    state: State
    point: Point
    score: float | None
    """Validation score after the last round, or None if the trial is not complete."""
    curve: dict[int, float]
    """Validation score by round, up to the round at which the trial ended."""
    remark: str = ""
    """Reason why the trial diverged or failed."""

    @property
    def folder(self) -> str:
        """Folder of the run, relative to the folder of the sweep."""
        return folder_of(self.number)

    @property
    def ending(self) -> str:
        """How an incomplete trial ended, in words."""
        if self.state == "pruned":
            return f"pruned after round {max(self.curve)}"
        return f"{self.state}: {self.remark}"

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as in trials.json."""
        return {
            "trial": self.number,
            "state": self.state,
            "settings": self.point,
            "validation": self.score,
            "curve": {str(index): score for index, score in self.curve.items()},
            "ending": "" if self.state == "complete" else self.ending,
            "folder": self.folder,
        }


def folder_of(number: int) -> str:
    """Return the folder of a trial, relative to the folder of the sweep."""
    return f"trials/{number:03d}"


def complete(trials: Sequence[Trial]) -> list[Trial]:
    """Return the complete trials, best first. Among equal scores the earlier trial comes first."""
    ended = [(trial, trial.score) for trial in trials if trial.state == "complete" and trial.score is not None]
    return [trial for trial, _ in sorted(ended, key=lambda pair: -pair[1])]
