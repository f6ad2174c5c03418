"""The record of a round, as in rounds.jsonl and in `Run.history`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from coterie.measure.cost import Cost
from coterie.measure.protocols import ADAPTED, AFTER, AS_IS, BEFORE, OF_ALL_CLIENTS, Figures, Statistics, figures_in


@dataclass(frozen=True)
class PopulationSize:
    """Size of the population that a round samples its cohort from."""

    clients: int
    examples: int
    """Training examples of these clients."""


@dataclass(frozen=True)
class Evaluated(Figures):
    """Figures of one evaluation, on test examples and, if clients have some, on validation examples."""

    train_loss: float | None = None
    """Objective (1) over existing clients, or None if it is not finite."""
    validation: Figures | None = None
    """Figures on validation examples, or None if no client has some."""
    train_score: Statistics | None = None
    """Score of existing users as they are, on their training examples."""

    def to_json(self, last10: bool = False) -> dict[str, Any]:
        """Return the evaluation as it is laid out in rounds.jsonl."""
        validation = {} if self.validation is None else {"validation": self.validation.to_json()}
        train = {} if self.train_score is None else {"train_score": self.train_score.to_json()}
        return {**super().to_json(last10), **validation, "train_loss": self.train_loss, **train}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read an evaluation. Missing figures are empty and unknown keys are ignored."""
        validation = Figures.from_json(tree["validation"]) if tree.get("validation") else None
        train = Statistics.from_json(tree["train_score"]) if tree.get("train_score") else None
        return cls(**figures_in(tree), train_loss=tree.get("train_loss"), validation=validation, train_score=train)


@dataclass(frozen=True)
class Record:
    """The record of one round."""

    round: int
    """Number of the round, from 1."""
    cohort: tuple[str, ...]
    """Ids of the clients that took part."""
    train_loss: float | None
    """Average training loss of the cohort during the round, or None if it is not known."""
    cost: Cost
    """Cost of the round, summed over its clients."""
    eval: Evaluated | None = None
    """Evaluation after the round, or None if the round was not evaluated."""
    population: PopulationSize | None = None
    """Size of the population, if it differs from the round before."""
    silent: tuple[str, ...] = ()
    """Ids of the clients that were sampled but did not answer."""
    refused: dict[str, str] = field(default_factory=dict)
    """Ids of the clients whose messages did not fit or were not finite and were ignored, with the reason."""
    digests: dict[str, str] = field(default_factory=dict)
    """For real sites: sha256 of each reply that counts, as it is in the site's own log."""
    notes: dict[str, float | str] = field(default_factory=dict)
    """Notes of the method by name. Strings are warnings to show, numbers are only recorded."""

    def told(self, score: str) -> str:
        """Return the scores of the evaluation in one line of text, and how long it took."""
        assert self.eval is not None
        means = {each: mean for each in OF_ALL_CLIENTS if (mean := self.eval[each.key].mean) is not None}
        words = {AS_IS: "as is", ADAPTED: "adapted", BEFORE: "for new users", AFTER: "for new users after adaptation"}
        told = ", ".join(f"{100 * mean:.2f} % {words[each]}" for each, mean in means.items()) or "not measured"
        clients = sum(each.clients or 0 for each in (self.eval.existing.as_is, self.eval.new.before))
        return f"round {self.round}: {score} {told} ({clients:,} clients in {self.cost.eval_seconds:.1f} s)"

    def to_json(self) -> dict[str, Any]:
        """Return the record as a line of rounds.jsonl, without the optional parts that are empty."""
        optional = {
            "population": self.population and asdict(self.population),
            "silent": list(self.silent),
            "notes": self.notes,
            "refused": self.refused,
            "digests": self.digests,
            "eval": self.eval and self.eval.to_json(),
        }
        return {
            "round": self.round,
            "cohort": list(self.cohort),
            "train_loss": self.train_loss,
            **{key: value for key, value in optional.items() if value},
            "cost": self.cost.to_json(),
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read a line of rounds.jsonl. Unknown keys are ignored."""
        population = tree.get("population")
        return cls(
            round=tree["round"],
            cohort=tuple(tree.get("cohort", ())),
            train_loss=tree.get("train_loss"),
            cost=Cost.from_json(tree.get("cost", {})),
            eval=Evaluated.from_json(tree["eval"]) if tree.get("eval") else None,
            population=PopulationSize(population["clients"], population["examples"]) if population else None,
            silent=tuple(tree.get("silent", ())),
            refused=_reasons(tree.get("refused", {})),
            digests=dict(tree.get("digests", {})),
            notes=dict(tree.get("notes", {})),
        )


def _reasons(refused: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Read which messages were refused. Earlier versions did not record why."""
    return dict(refused) if isinstance(refused, Mapping) else dict.fromkeys(refused, "was not finite")
