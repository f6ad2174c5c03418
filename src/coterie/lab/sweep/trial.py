"""What became of one point of the space."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.lab.sweep.space import Point

State = Literal["complete", "pruned", "diverged", "failed"]


@dataclass(frozen=True)
class Trial:
    number: int
    state: State
    point: Point
    score: float | None
    """Its validation score after the last round; None unless it is complete."""
    curve: dict[int, float]
    """Its validation score by round, as far as it came."""
    remark: str = ""
    """Why it diverged or failed."""

    @property
    def folder(self) -> str:
        """Of its run, in that of the sweep."""
        return folder_of(self.number)

    @property
    def ending(self) -> str:
        """In words, of one that is not complete."""
        if self.state == "pruned":
            return f"pruned after round {max(self.curve)}"
        return f"{self.state}: {self.remark}"

    def as_dict(self) -> dict[str, Any]:
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
    return f"trials/{number:03d}"


def complete(trials: Sequence[Trial]) -> list[Trial]:
    """Best first; of equals, the earlier one. Only these have a result."""
    ended = [(trial, trial.score) for trial in trials if trial.state == "complete" and trial.score is not None]
    return [trial for trial, _ in sorted(ended, key=lambda pair: -pair[1])]
