"""The summary of a run, as in summary.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from coterie.measure.cost import Cost
from coterie.measure.protocols import PROTOCOLS, Existing, Figures, New, figures_in
from coterie.measure.record import Record
from coterie.settings import Epochs


@dataclass(frozen=True, kw_only=True)
class Summary(Figures):
    """Figures of a finished run. `existing` and `new` are measured on test examples after the last round."""

    method: str
    """Name of the method."""
    engine: str
    """Name of the engine."""
    seed: int
    rounds: int
    """Number of rounds that were played."""
    score: str
    """Name of the score, such as "accuracy"."""
    protocol: str
    """A sentence that says exactly what was measured."""
    validation: Figures | None = None
    """Figures on validation examples, or None if no client has some."""
    emphasis: float | None = None
    """FedDecay's Table 1: weight of fast personalization relative to initial success, or None if it is not known."""
    train_loss: float | None
    """Objective (1) over existing clients, or None if it is not finite."""
    cost: Cost
    """Cost of the training, summed over clients and rounds."""

    def to_json(self, last10: bool = True) -> dict[str, Any]:
        """Return the summary as it is laid out in summary.json, without the optional keys that are not known."""
        facts = {key: getattr(self, key) for key in ("method", "engine", "seed", "rounds", "score", "protocol")}
        return {
            **facts,
            **super().to_json(last10),
            **({} if self.validation is None else {"validation": self.validation.to_json()}),
            **({} if self.emphasis is None else {"emphasis": self.emphasis}),
            "train_loss": self.train_loss,
            "cost": self.cost.to_json(),
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read summary.json. Missing figures are empty and unknown keys are ignored."""
        plain = {field.name: tree[field.name] for field in fields(cls) if field.name in tree}
        read = {
            "score": tree.get("score", "accuracy"),
            "train_loss": tree.get("train_loss"),
            "cost": Cost.from_json(tree.get("cost", {})),
            "validation": Figures.from_json(tree["validation"]) if tree.get("validation") else None,
        }
        return cls(**{**plain, **figures_in(tree), **read})


def totals(history: Sequence[Record]) -> Cost:
    """Add up the cost of all rounds."""
    return sum((record.cost for record in history), Cost())


def with_last10(final: Figures, history: Sequence[Record]) -> Figures:
    """Return the statistics of an evaluation, each with the mean of its `mean` over the last ten evaluations."""
    evaluated: list[Figures] = [record.eval for record in history if record.eval is not None]
    last = evaluated[-10:] or [final]
    found: dict[str, dict[str, Any]] = {"existing": {}, "new": {}}
    for protocol in PROTOCOLS:
        mean = _mean([each[protocol.key].mean for each in last])
        found[protocol.group][protocol.name] = replace(final[protocol.key], last10_mean=mean)
    return Figures(Existing(**found["existing"]), New(**found["new"]))


def protocol(score: str, labels: str, adapt_steps: int, rounds: int, existing: str, new: str, *, prepares: bool) -> str:
    """Return a sentence that says which clients were evaluated, with which model, on which split, after which round."""
    own, all_of_them = "the client's own classes", "all classes (restricted_mean: the client's own classes only)"
    unit = ("epoch" if adapt_steps == 1 else "epochs") if isinstance(adapt_steps, Epochs) else "steps"
    made = "; the method prepares them on their training split first" if prepares else ""
    space = f", over {own if labels == 'local' else all_of_them}" if score == "accuracy" else ""
    return (
        f"{score[0].upper()}{score[1:]} on each client's own test split after round {rounds}{space}, "
        "unweighted mean over clients. "
        f"existing.as_is and existing.adapted: {existing} of the training, with their personal state as last stored "
        f"and after {adapt_steps} local adaptation {unit} on their training split. "
        "existing.participants: the last round's cohort, right after its local update and before aggregation. "
        f"new.before and new.after: {new} held out of training, before and after {adapt_steps} such {unit}{made}."
    )


def which(evaluated: int, there_are: int) -> str:
    """Describe how many clients were evaluated, for the sentence of `protocol`."""
    if evaluated < there_are:
        return f"a random sample of {evaluated:,} of the {there_are:,} clients"
    return f"all {there_are:,} clients"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
