"""The figures of a run, as in summary.json."""

from typing import Any

from coterie.measure.cost import Cost
from coterie.settings import Epochs

Record = dict[str, Any]


def totals(history: list[Record]) -> Cost:
    total = Cost()
    for record in history:
        total += Cost(**record["cost"])
    return total


def with_last10(final: dict[str, Any], history: list[Record]) -> dict[str, Any]:
    """An evaluation's statistics, each with the mean of its `mean` over the last ten evaluated rounds."""
    last = [record["eval"] for record in history if "eval" in record][-10:] or [final]
    return {
        group: {
            protocol: {**figures, "last10_mean": _mean([each[group][protocol]["mean"] for each in last])}
            for protocol, figures in final[group].items()
        }
        for group in ("existing", "new")
    }


def protocol(score: str, labels: str, adapt_steps: int, rounds: int, existing: str, new: str, *, settles: bool) -> str:
    """A sentence that says which clients, which model, before or after adaptation, which split, which round."""
    own, all_of_them = "its own classes", "the union of all classes (restricted_mean: its own classes only)"
    unit = ("epoch" if adapt_steps == 1 else "epochs") if isinstance(adapt_steps, Epochs) else "steps"
    made = "; new.before has what the method makes of a client's training split at first sight" if settles else ""
    space = f", over {own if labels == 'local' else all_of_them}" if score == "accuracy" else ""
    return (
        f"{score[0].upper()}{score[1:]} on each client's own test split after round {rounds}{space}, "
        "unweighted mean over clients: "
        f"existing.as_is and existing.adapted are {existing} of the training, with the personal part "
        f"as last stored and after {adapt_steps} local adaptation {unit} on their training split; "
        "existing.participants are the last round's cohort right after its local update, before aggregation; "
        f"new.before and new.after are {new} held out of the training, before and after {adapt_steps} such {unit}"
        f"{made}."
    )


def which(evaluated: int, there_are: int) -> str:
    """Words for protocol."""
    if evaluated < there_are:
        return f"a random sample of {evaluated:,} of the {there_are:,} clients"
    return f"all {there_are:,} clients"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
