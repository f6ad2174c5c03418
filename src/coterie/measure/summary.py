"""The summary of a run, as in summary.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from coterie.measure.cost import Cost
from coterie.measure.protocols import (
    AS_IS,
    CHOOSES,
    PROTOCOLS,
    Existing,
    Figures,
    New,
    Statistics,
    existing_in,
    figures_in,
)
from coterie.measure.record import Record
from coterie.measure.stopping import Chosen
from coterie.settings import Epochs

OWN, ALL, OUTPUTS = "own classes", "all classes", "all outputs of the shared head"
"""What a client's model may choose among. `OUTPUTS` are those of a shared head that has more outputs than there are
labels to choose among, such as a head over local labels if clients differ in their number of classes."""
NAMED = 5
"""Largest number of clients that a remark names."""


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
    choices: str = ""
    """What a client's model chooses among: one of `OWN`, `ALL` and `OUTPUTS`. Empty if it does not predict classes."""
    void_rounds: int = 0
    """Number of rounds in which no client took part."""
    evaluations: int | None = None
    """Number of evaluations that `last10_mean` averages: at most ten."""
    visited: Existing | None = None
    """Figures of the existing users that took part in a round, or None if all of them did."""
    never_visited: Existing | None = None
    """Figures of the existing users that never took part in a round, or None if there are none."""
    one_class: tuple[str, ...] = ()
    """Evaluated clients that have only one class. Among its own classes, such a client always answers correctly."""
    several_classes: Figures | None = None
    """Figures without the clients that have only one class, or None if there are no such clients."""
    validation: Figures | None = None
    """Figures on validation examples, or None if no client has some."""
    emphasis: float | None = None
    """FedDecay's Table 1: weight of fast personalization relative to initial success, or None if it is not known."""
    train_loss: float | None
    """Objective (1) over existing clients, or None if it is not finite."""
    train_score: Statistics | None = None
    """Score of existing users as they are, on their training examples, or None if it is not known."""
    stop: Chosen | None = None
    """The round that the stopping rule chose, or None if there was no rule."""
    cost: Cost
    """Cost of the training, summed over clients and rounds."""
    stored_bytes: float | None = None
    """Mean size of the personal state that an existing client stores between rounds, or None if it is not known. A
    method that only shares one model needs 0."""

    @property
    def learned(self) -> bool:
        """Whether any client took part in any round. A run without rounds is not blamed for that."""
        return not self.rounds or self.void_rounds < self.rounds

    def remarks(self) -> list[str]:
        """Return what readers must know: how the run ended, void rounds, and clients that distort the means."""
        remarks = [] if self.stop is None else [self._ending(self.stop)]
        if self.void_rounds:
            remarks.append(f"{self.void_rounds:,} of {self.rounds:,} rounds had no clients")
        if self.never_visited:
            never, total = self.never_visited.as_is.clients or 0, self.existing.as_is.clients or 0
            remarks.append(f"{never:,} of {_clients(total)} {_were(never)} never visited")
        total = sum(each.clients or 0 for each in (self.existing.as_is, self.new.before))
        if self.one_class and total:  # without test examples there are no scores to explain
            names = f" ({', '.join(self.one_class)})" if len(self.one_class) <= NAMED else ""
            have = "has" if len(self.one_class) == 1 else "have"
            remarks.append(
                f"{len(self.one_class):,} of {_clients(total)} {have} only one class{names}, and among its own classes "
                "such a client is always right"
            )
        return remarks

    def _ending(self, stop: Chosen) -> str:
        """Return which round the stopping rule chose and by what."""
        loss = stop.by == "train_loss"
        figure = "training loss" if loss else f"validation {self.score}, {CHOOSES[stop.by].title}"
        if stop.round is None or stop.value is None:
            return f"the stopping rule chose no round, because its figure ({figure}) was never measured"
        ended = "the stopping rule was not met"
        if stop.stopped:
            times = "1 evaluation" if stop.patience == 1 else f"{stop.patience:,} evaluations"
            ended = f"stopped after round {self.rounds:,}, when {times} in a row had brought no improvement"
        value = f"{stop.value:.4g}" if loss else f"{100 * stop.value:.2f} %"
        test = stop[AS_IS.key if loss else CHOOSES[stop.by].key].mean
        tested = "" if test is None else f" and test {self.score} {100 * test:.2f} %"
        return (
            f"{ended}; the rule chose round {stop.round:,} with {value} ({figure}){tested}. Tables and models are "
            f"those of round {self.rounds:,}"
        )

    def to_json(self, last10: bool = True) -> dict[str, Any]:
        """Return the summary as it is laid out in summary.json, without the optional keys that are not known."""
        plain = ("method", "engine", "seed", "rounds", "score", "protocol", "choices", "void_rounds", "evaluations")
        users = {"visited": self.visited, "never_visited": self.never_visited}
        parts = {name: Figures(part, New()).to_json()["existing"] for name, part in users.items() if part is not None}
        if self.several_classes is not None:
            parts |= {"one_class": list(self.one_class), "several_classes": self.several_classes.to_json()}
        return {
            **{key: value for key in plain if (value := getattr(self, key)) is not None},
            **super().to_json(last10),
            **parts,
            **({} if self.validation is None else {"validation": self.validation.to_json()}),
            **({} if self.emphasis is None else {"emphasis": self.emphasis}),
            "train_loss": self.train_loss,
            **({} if self.train_score is None else {"train_score": self.train_score.to_json()}),
            **({} if self.stop is None else {"stop": self.stop.to_json()}),
            "cost": self.cost.to_json(),
            **({} if self.stored_bytes is None else {"stored_bytes": self.stored_bytes}),
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read summary.json. Missing figures are empty and unknown keys are ignored."""
        plain = {field.name: tree[field.name] for field in fields(cls) if field.name in tree}
        read = {
            "score": tree.get("score", "accuracy"),
            "train_loss": tree.get("train_loss"),
            "train_score": Statistics.from_json(tree["train_score"]) if tree.get("train_score") else None,
            "stop": Chosen.from_json(tree["stop"]) if tree.get("stop") else None,
            "cost": Cost.from_json(tree.get("cost", {})),
            "one_class": tuple(tree.get("one_class", ())),
            **{
                key: Figures.from_json(tree[key]) if tree.get(key) else None
                for key in ("validation", "several_classes")
            },
            **{key: existing_in(tree[key]) if tree.get(key) else None for key in ("visited", "never_visited")},
        }
        return cls(**{**plain, **figures_in(tree), **read})


def totals(history: Sequence[Record]) -> Cost:
    """Add up the cost of all rounds."""
    return sum((record.cost for record in history), Cost())


def with_last10(final: Figures, history: Sequence[Record]) -> Figures:
    """Return the statistics of an evaluation, each with the mean of its `mean` over the last evaluations."""
    last = last_evaluations(history) or [final]
    found: dict[str, dict[str, Any]] = {"existing": {}, "new": {}}
    for protocol in PROTOCOLS:
        mean = _mean([each[protocol.key].mean for each in last])
        found[protocol.group][protocol.name] = replace(final[protocol.key], last10_mean=mean)
    return Figures(Existing(**found["existing"]), New(**found["new"]))


def last_evaluations(history: Sequence[Record]) -> list[Figures]:
    """Return the last ten evaluations, or all of them if there were fewer."""
    evaluated: list[Figures] = [record.eval for record in history if record.eval is not None]
    return evaluated[-10:]


def protocol(
    score: str, choices: str, adapt_steps: int, rounds: int, existing: str, new: str, *, prepares: bool
) -> str:
    """Return a sentence that says which clients were evaluated, with which model, on which split, after which round."""
    own = "the client's own classes"
    unit = ("epoch" if adapt_steps == 1 else "epochs") if isinstance(adapt_steps, Epochs) else "steps"
    made = "; the method prepares them on their training split first" if prepares else ""
    space = own if choices == OWN else f"{choices} (restricted_mean: {own} only)"
    space = f", chosen among {space}" if choices else ""
    return (
        f"{score[0].upper()}{score[1:]} on each client's own test split after round {rounds}{space}, "
        "unweighted mean over clients. "
        f"existing.as_is and existing.adapted: {existing} of the training, with their personal state as last stored "
        f"and after {adapt_steps} local adaptation {unit} on their training split. "
        "train_score and train_loss: existing.as_is on their training split. "
        "existing.participants: the last round's cohort, right after its local update and before aggregation. "
        f"new.before and new.after: {new} held out of training, before and after {adapt_steps} such {unit}{made}."
    )


def which(evaluated: int, there_are: int) -> str:
    """Describe how many clients were evaluated, for the sentence of `protocol`."""
    if evaluated < there_are:
        return f"a random sample of {evaluated:,} of the {there_are:,} clients"
    return f"all {there_are:,} clients"


def _clients(number: int) -> str:
    return f"{number:,} client" + ("" if number == 1 else "s")


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
