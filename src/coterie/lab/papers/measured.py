"""Figures of a run folder that are compared with a paper."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.errors import UserError
from coterie.lab.papers.curve import Curve
from coterie.lab.papers.numbers import stamped
from coterie.lab.papers.users import Picked, pick
from coterie.measure.protocols import PARTICIPANTS, Statistics
from coterie.measure.record import Record
from coterie.recipe import Recipe
from coterie.storage.folder import read_history, read_summary
from coterie.storage.origin import read_origin


class Percentage(NamedTuple):
    """Mean and standard error, in percent."""

    mean: float
    stderr: float | None
    """Standard error over clients, or None for a single client."""

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.stderr is None else f"{self.mean:.2f} ± {self.stderr:.2f}"


class Measured(NamedTuple):
    """Figures of one run, or means over runs that differ only in their seed."""

    figure: Percentage | None
    """Accuracy under the protocol of the paper, averaged over the last rounds that the recipe evaluates."""
    as_is: Percentage | None
    adapted: Percentage | None
    validation: Percentage | None
    """Accuracy of adapted existing users on their validation examples, or None if they have none."""
    train_loss: float | None
    seconds: float
    """Seconds per round."""
    flops: float
    """Floating-point operations per round."""
    spread: float | None = None
    """Standard deviation of `figure` over seeds."""
    picked: Picked | None = None
    """Statistics over users at the round with the best validation score. Only a single run has them."""
    restricted: float | None = None
    """Accuracy of `as_is` in percent if each client chooses only among its own classes."""
    adapted_restricted: float | None = None
    """Accuracy of `adapted` in percent if each client chooses only among its own classes."""
    stored_bytes: float | None = None
    """Mean size of the personal state that an existing client stores between rounds."""
    curve: Curve | None = None
    """Evaluated rounds. Only a single run has them, and runs that were stored by older versions do not."""

    numbers: int = 0
    """Version of the numbers. 0 means that the run is from before versions were stored."""

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as in runs.json."""
        figures = {key: value for key, value in self._asdict().items() if key != "curve"}
        plain = {key: list(value) if isinstance(value, Percentage) else value for key, value in figures.items()}
        return {
            **plain,
            "picked": self.picked and self.picked.as_dict(),
            **({"curve": self.curve.as_dict()} if self.curve else {}),
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Measured":
        """Read the figures of a run from runs.json."""
        figures: dict[str, Any] = {
            key: Percentage(*value) if isinstance(value, list) else value for key, value in content.items()
        }
        if picked := content.get("picked"):
            figures["picked"] = Picked.from_dict(picked)
        if curve := content.get("curve"):
            figures["curve"] = Curve.from_dict(curve)
        return cls(**figures)


def is_finished(folder: Path) -> bool:
    """Return whether the run in the folder is finished."""
    return (folder / "summary.json").exists()


def figures_of(folder: Path, protocol: str) -> Measured:
    """Read the figures of a finished run from its folder."""
    last = Recipe.parse(read_origin(folder).recipe).run.eval_last
    summary = read_summary(folder)
    if summary is None:
        raise UserError(f"{folder} has no summary.json, so its run has not finished; resume it")
    records = read_history(folder, summary.rounds)
    warm = [record.cost.seconds for record in records[1:] or records]
    return Measured(
        figure=_over_rounds(records[-last:], protocol),
        as_is=_percentage(summary.existing.as_is),
        adapted=_percentage(summary.existing.adapted),
        validation=_percentage(summary.validation.existing.adapted) if summary.validation else None,
        train_loss=summary.train_loss,
        seconds=statistics.median(warm or [0.0]),
        flops=summary.cost.flops / max(1, len(records)),
        picked=pick(records),
        restricted=_percent(summary.existing.as_is.restricted_mean),
        adapted_restricted=_percent(summary.existing.adapted.restricted_mean),
        stored_bytes=summary.stored_bytes,
        curve=Curve.of(records, protocol),
        numbers=stamped(folder),
    )


def over_seeds(runs: Sequence[Measured]) -> Measured | None:
    """Average runs. The standard error of a mean over n independent runs is the root of the sum of squares, over n."""
    if not runs:
        return None
    means = [run.figure.mean for run in runs if run.figure is not None]
    return Measured(
        figure=_mean_percentage([run.figure for run in runs]),
        as_is=_mean_percentage([run.as_is for run in runs]),
        adapted=_mean_percentage([run.adapted for run in runs]),
        validation=_mean_percentage([run.validation for run in runs]),
        train_loss=_mean([run.train_loss for run in runs]),
        seconds=statistics.fmean(run.seconds for run in runs),
        flops=statistics.fmean(run.flops for run in runs),
        spread=statistics.stdev(means) if len(means) > 1 else None,
        restricted=_mean([run.restricted for run in runs]),
        adapted_restricted=_mean([run.adapted_restricted for run in runs]),
        stored_bytes=_mean([run.stored_bytes for run in runs]),
        numbers=min(run.numbers for run in runs),
    )


def _over_rounds(records: Sequence[Record], protocol: str) -> Percentage | None:
    """Average over rounds. A client scores similarly in consecutive rounds, so it counts only once in the error."""
    evaluated = [(record.cohort, record.eval[f"existing.{protocol}"]) for record in records if record.eval is not None]
    means = [found.mean for _, found in evaluated if found.mean is not None]
    if not means:
        return None
    mean = statistics.fmean(means)
    if protocol != PARTICIPANTS.name:
        return Percentage(100 * mean, _percent(_mean([found.stderr for _, found in evaluated])))
    clients = {client for cohort, _ in evaluated for client in cohort}
    # stderr times the root of the cohort's size is the sample standard deviation of that round
    deviations = [
        found.stderr * math.sqrt(found.clients or len(cohort))
        for cohort, found in evaluated
        if found.stderr is not None
    ]
    deviation = statistics.fmean(deviations) if deviations else None
    return Percentage(100 * mean, None if deviation is None else 100 * deviation / math.sqrt(len(clients)))


def _percentage(found: Statistics) -> Percentage | None:
    return None if found.mean is None else Percentage(100 * found.mean, _percent(found.stderr))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _mean_percentage(figures: Sequence[Percentage | None]) -> Percentage | None:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return None
    errors = [figure.stderr for figure in known if figure.stderr is not None]
    error = math.hypot(*errors) / len(known) if len(errors) == len(known) else None
    return Percentage(statistics.fmean(figure.mean for figure in known), error)
