"""The outcome of a sweep, as JSON and as tables.

Only complete trials have a result. Test scores are shown only for the best trial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.lab.sweep.space import shown
from coterie.lab.sweep.trial import Trial, complete
from coterie.measure.protocols import CHOOSES, Figures
from coterie.measure.summary import Summary
from coterie.report.columns import own
from coterie.report.tables import Table
from coterie.report.units import percent, percent_with_error


@dataclass(frozen=True)
class Outcome:
    """A sweep as far as it has come."""

    data: str
    method: str
    seed: int
    rounds: int
    search: str
    protocol: str
    """The setting `sweep.protocol`: the protocol whose validation score decides."""
    score: str
    space: Mapping[str, Mapping[str, Any]]
    planned: int
    """Total number of trials."""
    trials: Sequence[Trial]
    """Trials that ended, in the order in which they started."""
    summary: Summary | None
    """Summary of the best trial's run, or None if no trial is complete."""

    @property
    def keys(self) -> list[str]:
        """Searched keys, such as `method.eta`."""
        return [f"{section}.{key}" for section, axes in self.space.items() for key in axes]

    @property
    def complete(self) -> list[Trial]:
        """Complete trials, best first."""
        return complete(self.trials)

    @property
    def incomplete(self) -> list[Trial]:
        """Trials that were pruned, diverged or failed."""
        return [trial for trial in self.trials if trial.state != "complete"]

    @property
    def best(self) -> Trial | None:
        """The complete trial with the best validation score."""
        return next(iter(self.complete), None)

    @property
    def best_figures(self) -> dict[str, Figures]:
        """Figures of the best trial by split, empty if no trial is complete."""
        if self.summary is None or self.summary.validation is None:
            return {}
        return {"validation": self.summary.validation, "test": Figures(self.summary.existing, self.summary.new)}

    def to_json(self) -> dict[str, Any]:
        """Return the content of trials.json."""
        figures = {split: found.to_json(last10=split == "test") for split, found in self.best_figures.items()}
        return {
            "data": self.data,
            "method": self.method,
            "seed": self.seed,
            "rounds": self.rounds,
            "search": self.search,
            "protocol": self.protocol,
            "score": self.score,
            "space": self.space,
            "planned": self.planned,
            "best": self.best and self.best.number,
            "best_figures": figures or None,
            "trials": [trial.as_dict() for trial in self.trials],
        }


def tables(found: Outcome) -> list[Table]:
    """Return a table of the complete trials, best first, and one of the others if there are any."""
    lines = [[*_cells(trial, found.keys), percent(trial.score)] for trial in found.complete]
    title = f"Complete trials: validation {found.score} in percent ({CHOOSES[found.protocol].title})"
    first = Table(["trial", *found.keys, "validation"], lines, title, _notes(found))
    if not found.incomplete:
        return [first]
    lines = [[*_cells(trial, found.keys), trial.ending] for trial in found.incomplete]
    return [first, Table(["trial", *found.keys, "why"], lines, "Incomplete trials, which have no result")]


def _cells(trial: Trial, keys: Sequence[str]) -> list[str]:
    return [str(trial.number), *(shown(trial.point[key]) for key in keys)]


def _notes(found: Outcome) -> list[str]:
    left = found.planned - len(found.trials)
    notes = [f"{left} of {found.planned} trials have not run yet."] if left > 0 else []
    if found.best is None:
        return [*notes, "No trial is complete, so there is no best trial yet."]
    test = found.best_figures["test"]
    figures = [
        f"{protocol.title} {percent_with_error(own.mean, own.stderr, own.clients)}"
        for protocol in CHOOSES.values()
        if (own := test[protocol.key]).mean is not None
    ]
    chosen = f"Its scores on test examples, which were not used to choose: {'; '.join(figures)}."
    return [*notes, f"Trial {found.best.number} is the best. {chosen}", *remarks(found)]


def remarks(found: Outcome) -> list[str]:
    """Return what readers of the scores must know about the best trial."""
    if found.summary is None:
        return []
    choices = f"A client chooses among {own(found.summary.choices)}." if found.summary.choices else ""
    if "model.labels" in found.keys:
        choices += (
            " Trials with other model.labels choose among other classes, so do not compare their scores directly."
        )
    return [*filter(None, [choices]), *(f"{remark}." for remark in found.summary.remarks())]
