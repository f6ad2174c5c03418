"""What a run folder says about its run, as far as it is compared."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from coterie.lab.papers.users import Picked, pick
from coterie.recipe import Recipe
from coterie.storage.folder import read_recipe

Record = dict[str, Any]


class Figure(NamedTuple):
    """In percent."""

    mean: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.stderr:.2f}"


class Measured(NamedTuple):
    """Of one run, or of several that differ in their seed."""

    figure: Figure | None
    """Under the protocol of the paper, over the rounds that it takes."""
    as_is: Figure | None
    adapted: Figure | None
    validation: Figure | None
    """Adapted clients on their validation split, where they have one."""
    train_loss: float | None
    seconds: float
    """Of a round."""
    flops: float
    """Of a round."""
    spread: float | None = None
    """The standard deviation of `figure` over seeds."""
    picked: Picked | None = None
    """Of one run: its users at the round that validation picks."""

    def as_dict(self) -> Record:
        plain = {key: list(value) if isinstance(value, Figure) else value for key, value in self._asdict().items()}
        return {**plain, "picked": self.picked and self.picked.as_dict()}

    @classmethod
    def from_dict(cls, content: Record) -> "Measured":
        figures: Record = {key: Figure(*value) if isinstance(value, list) else value for key, value in content.items()}
        if picked := content.get("picked"):
            figures["picked"] = Picked.from_dict(picked)
        return cls(**figures)


def is_finished(folder: Path) -> bool:
    return (folder / "summary.json").exists()


def figures_of(folder: Path, protocol: str) -> Measured:
    """Of a finished run: the figure is the mean over the rounds that the recipe evaluates at the end."""
    summary = json.loads((folder / "summary.json").read_text())
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    last = Recipe.parse(read_recipe(folder)).run.eval_last
    validation = summary.get("validation") or {"existing": {}}
    warm = [record["cost"]["seconds"] for record in records[1:] or records]
    return Measured(
        figure=_over_rounds([record for record in records[-last:] if "eval" in record], protocol),
        as_is=_figure(summary["existing"]["as_is"]),
        adapted=_figure(summary["existing"]["adapted"]),
        validation=_figure(validation["existing"].get("adapted")),
        train_loss=summary["train_loss"],
        seconds=statistics.median(warm or [0.0]),
        flops=summary["cost"]["flops"] / max(1, len(records)),
        picked=pick(records),
    )


def over_seeds(runs: Sequence[Measured]) -> Measured | None:
    """The means; the standard error of a mean over n independent runs is the root of the sum of squares, over n."""
    if not runs:
        return None
    means = [run.figure.mean for run in runs if run.figure is not None]
    return Measured(
        figure=_mean_figure([run.figure for run in runs]),
        as_is=_mean_figure([run.as_is for run in runs]),
        adapted=_mean_figure([run.adapted for run in runs]),
        validation=_mean_figure([run.validation for run in runs]),
        train_loss=_mean([run.train_loss for run in runs]),
        seconds=statistics.fmean(run.seconds for run in runs),
        flops=statistics.fmean(run.flops for run in runs),
        spread=statistics.stdev(means) if len(means) > 1 else None,
    )


def _over_rounds(records: Sequence[Record], protocol: str) -> Figure | None:
    """The mean of the means. Its error: a client scores much the same in each of a few rounds, so it counts once."""
    each = [record["eval"]["existing"][protocol] for record in records]
    each = [figures for figures in each if figures["mean"] is not None]
    if not each:
        return None
    mean = statistics.fmean(figures["mean"] for figures in each)
    if protocol != "participants":
        return Figure(100 * mean, 100 * statistics.fmean(figures["stderr"] for figures in each))
    clients = {client for record in records for client in record["cohort"]}
    std = statistics.fmean(figures["std"] for figures in each)
    return Figure(100 * mean, 100 * std / math.sqrt(len(clients)))


def _figure(figures: Record | None) -> Figure | None:
    if not figures or figures["mean"] is None:
        return None
    return Figure(100 * figures["mean"], 100 * figures["stderr"])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _mean_figure(figures: Sequence[Figure | None]) -> Figure | None:
    known = [figure for figure in figures if figure is not None]
    if not known:
        return None
    error = math.hypot(*(figure.stderr for figure in known)) / len(known)
    return Figure(statistics.fmean(figure.mean for figure in known), error)
