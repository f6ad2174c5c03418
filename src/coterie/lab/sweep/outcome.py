"""The trials as JSON and as tables. Only complete ones have a result; only of the best are test figures shown."""

from collections.abc import Sequence
from typing import Any

from coterie import registry
from coterie.lab.papers.comparison import Table
from coterie.lab.sweep.space import SweepSettings
from coterie.lab.sweep.trial import Trial, complete
from coterie.recipe import Recipe
from coterie.report.sweep_page import LABELS, keys_of, shown, with_result, without_result
from coterie.report.units import percent, percent_with_error

Record = dict[str, Any]


def content(
    trials: Sequence[Trial], recipe: Recipe, settings: SweepSettings, total: int, score: str, summary: Record | None
) -> Record:
    """As in trials.json; `summary` is that of the best trial's run."""
    ranked = complete(trials)
    return {
        "data": registry.name_of("data", recipe.data),
        "method": registry.name_of("method", recipe.method),
        "seed": recipe.run.seed,
        "rounds": recipe.run.rounds,
        "search": settings.search,
        "protocol": settings.protocol,
        "score": score,
        "space": settings.space,
        "planned": total,
        "best": ranked[0].number if ranked else None,
        "best_figures": summary and {"validation": summary["validation"], "test": _groups(summary)},
        "trials": [trial.as_dict() for trial in trials],
    }


def tables(found: Record) -> list[Table]:
    """The complete trials, best first; then the others."""
    keys = keys_of(found)
    score, protocol = found["score"], LABELS[found["protocol"]].label
    lines = [[*_cells(trial, keys), percent(trial["validation"])] for trial in with_result(found)]
    first = Table(
        ["trial", *keys, "validation"], lines, f"Complete trials: validation {score}, % ({protocol})", _notes(found)
    )
    if not (others := without_result(found)):
        return [first]
    lines = [[*_cells(trial, keys), trial["ending"]] for trial in others]
    return [first, Table(["trial", *keys, "why"], lines, "Not complete, so without a result")]


def _cells(trial: Record, keys: Sequence[str]) -> list[str]:
    return [str(trial["trial"]), *(shown(trial["settings"][key]) for key in keys)]


def _notes(found: Record) -> list[str]:
    left = found["planned"] - len(found["trials"])
    notes = [f"{left} of {found['planned']} trials are still to run."] if left > 0 else []
    if found["best"] is None:
        return [*notes, "No trial is complete, so there is no best one."]
    figures = [
        f"{protocol.label} {percent_with_error(own.get('mean'), own.get('stderr'))}"
        for protocol in LABELS.values()
        if (own := protocol.of(found["best_figures"]["test"])).get("mean") is not None
    ]
    test = f"On its test examples, by which nothing was chosen: {'; '.join(figures)}."
    return [*notes, f"Trial {found['best']} is the best. {test}"]


def _groups(summary: Record) -> Record:
    return {group: summary[group] for group in ("existing", "new")}
