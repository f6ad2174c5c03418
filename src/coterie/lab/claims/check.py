"""Training some stored runs again, to compare every digit of their figures."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from coterie.lab.claims.stored import Results
from coterie.lab.papers.experiment import Cell
from coterie.lab.papers.measured import Measured, figures_of, is_finished
from coterie.lab.papers.numbers import later
from coterie.report.tables import Table

BRIEF = 60.0
"""Most seconds that a run may have taken to be chosen."""
NOT_COMPARED = ("seconds", "numbers", "curve")
"""Figures that depend on the machine or on when a run was stored."""


class Outcome(Enum):
    """How the figures of a run that was trained again compare with the stored ones."""

    EQUAL = "every digit is equal"
    PRINTED = "equal as printed in tables"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Choice:
    """A stored run."""

    folder: str
    cell: Cell
    stored: Measured


@dataclass(frozen=True)
class Replayed:
    """A stored run that was trained again."""

    choice: Choice
    again: Measured | None
    """The new figures, or None if training diverged."""

    @property
    def pairs(self) -> dict[str, tuple[float, float]]:
        """The stored and the new value of each figure that is compared."""
        if self.again is None:
            return {}
        stored, again = (dict(_figures(each)) for each in (self.choice.stored, self.again))
        return {name: (value, again[name]) for name, value in stored.items() if name in again}

    @property
    def outcome(self) -> Outcome:
        """How the figures compare."""
        if self.again is None:
            return Outcome.DIFFERENT
        if all(old == new for old, new in self.pairs.values()):
            return Outcome.EQUAL
        printed = (_printed(name, old) == _printed(name, new) for name, (old, new) in self.pairs.items())
        return Outcome.PRINTED if all(printed) else Outcome.DIFFERENT

    @property
    def expected(self) -> bool:
        """Whether the outcome is as it should be: runs of this version of the numbers agree with the printed tables."""
        return self.outcome is not Outcome.DIFFERENT or bool(self.changes)

    def told(self) -> list[str]:
        """Return the line of the table."""
        name = f"{self.choice.folder} {self.choice.cell.name}"
        return [name, self.outcome.value, self._largest(), "older" if self.changes else "current"]

    @property
    def changes(self) -> list[str]:
        """What changed in the code since the run was stored."""
        return [change.what for change in later(self.choice.stored.numbers, self.choice.cell.at["method"])]

    def _largest(self) -> str:
        """Return the mean that differs most, or another figure if no mean does."""
        if self.again is None:
            return "training diverged"
        unequal = {name: pair for name, pair in self.pairs.items() if pair[0] != pair[1]}
        if not unequal:
            return ""
        name = max(unequal, key=lambda each: (each.endswith("mean"), abs(unequal[each][0] - unequal[each][1])))
        old, new = unequal[name]
        return f"{name} {old!r}, now {new!r}"


def choose(results: Results, cells: int, seed: int) -> list[Choice]:
    """Draw stored runs that took little time."""
    brief = [choice for choice in _stored(results) if _seconds(choice) <= BRIEF]
    return random.Random(seed).sample(brief, min(cells, len(brief)))


def replay(results: Results, choice: Choice, out: Path, should_stop: Callable[[], bool]) -> Replayed:
    """Train a stored run again, under `out`. Raises KeyboardInterrupt when told to stop."""
    campaign = results.campaign(choice.folder, out / choice.folder)
    campaign.play(choice.cell, campaign.training(choice.cell), lambda _: None, should_stop)
    folder = campaign.folder(choice.cell)
    return Replayed(choice, figures_of(folder, choice.cell.protocol) if is_finished(folder) else None)


def table(replayed: Sequence[Replayed]) -> Table:
    """Return a table of the outcomes."""
    notes = ["Digits may also differ between machines, as processors add in different orders."]
    changes = dict.fromkeys(what for each in replayed for what in each.changes)
    notes += [f"Older: since then {what}." for what in changes]
    headings = ["run", "outcome", "largest difference", "stored with code"]
    return Table(headings, [each.told() for each in replayed], "Stored runs, trained again", notes)


def _stored(results: Results) -> Iterator[Choice]:
    for name in results.campaigns():
        for cell, stored in results.campaign(name).finished():
            yield Choice(name, cell, stored)


def _seconds(choice: Choice) -> float:
    return choice.stored.seconds * choice.cell.recipe.run.rounds


def _figures(measured: Measured) -> Iterator[tuple[str, float]]:
    """Yield the figures that are compared, each with its name."""
    return _flat({name: value for name, value in measured.as_dict().items() if name not in NOT_COMPARED})


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in content.items():
        inner = dict(zip(("mean", "stderr"), value, strict=True)) if isinstance(value, list) else value
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{prefix}{key}.")
        elif inner is not None:
            yield f"{prefix}{key}", inner


def _printed(name: str, value: float) -> str:
    last = name.rpartition(".")[2]
    form = {"train_loss": ".4f", "flops": ".3g", "bytes": ".3g", "stored_bytes": ".3g"}.get(last, ".2f")
    return format(value, form)
