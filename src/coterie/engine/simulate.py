"""A run on one machine: round after round, with evaluation; everything that happened is in `history`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from coterie import streams
from coterie.engine.engine import Engine
from coterie.engine.round import play_round
from coterie.engine.sampler import Participation
from coterie.engine.setup import Setup
from coterie.engine.store import PersonalStore
from coterie.evaluate import Evaluation, Scores, evaluate, statistics
from coterie.method import Round, Tree

Record = dict[str, Any]


@dataclass
class Simulation:
    engine: Engine
    reason: str
    """Why this engine."""
    setup: Setup
    participation: Participation
    rounds: int
    eval_every: int
    adapt_steps: int
    eval_clients: int | None = None
    """How many existing and how many new clients are evaluated, at most; all, unless given."""
    shared: Tree = field(init=False)
    memory: Tree = field(init=False)
    store: PersonalStore = field(init=False)
    history: list[Record] = field(default_factory=list)
    """A record for each round, as in rounds.jsonl."""
    latest: Evaluation | None = None
    """The evaluation of the last round, where it was due."""

    def __post_init__(self) -> None:
        method, task = self.setup.method, self.setup.task
        self.shared = method.init_shared(task)
        self.memory = method.init_memory(task, self.shared)
        federation = self.setup.federation
        self.store = PersonalStore(self.setup.create, len(federation.ids), federation.x.device)

    def play(self) -> Iterator[Record]:
        """The rounds that are left; each is in the state and in the history when its record is given out."""
        while len(self.history) < self.rounds:
            record = self._next_round()
            self.history.append(record)
            yield record

    def evaluate(self) -> Evaluation:
        existing, new = self._evaluated
        return evaluate(self.engine, self.setup, self.shared, self.store, self.adapt_steps, existing, new)

    @cached_property
    def _evaluated(self) -> tuple[list[int], list[int]]:
        """Existing and new clients; of each kind as many as are asked for, the same ones throughout a run."""
        federation, rng = self.setup.federation, streams.generator(self.setup.seed, "evaluated")
        existing, new = (
            np.sort(rng.permutation(kind)[: self.eval_clients]).tolist()
            for kind in (federation.existing, federation.new)
        )
        return existing, new

    def _next_round(self) -> Record:
        setup, index = self.setup, len(self.history) + 1
        existing, ids = setup.federation.existing, setup.federation.ids
        drawn, r = self.participation.draw(len(existing), streams.generator(setup.seed, "cohort", index))
        cohort = existing[drawn].tolist()
        rnd = setup.method.plan(Round(index, len(existing), setup.federation.num_examples, r, setup.seed))
        due = index % self.eval_every == 0 or index == self.rounds

        played = play_round(self.engine, setup, self.shared, self.memory, self.store, cohort, rnd, scored=due)
        self.shared, self.memory = played.shared, played.memory
        record = {"round": index, "cohort": [ids[i] for i in cohort], "train_loss": played.loss}
        if played.refused:
            record["refused"] = [ids[i] for i in played.refused]
        if due:
            self.latest = self.evaluate()
            record["eval"] = self.measured(self.latest, Scores.of(played.scores))
        return {**record, "cost": played.cost.as_dict()}

    def measured(self, evaluation: Evaluation, participants: Scores) -> dict[str, Any]:
        """An evaluation as statistics over clients, laid out as in summary.json."""
        sizes = self.setup.federation.sizes("test").astype(np.float64)

        def over_clients(scores: Scores) -> dict[str, Any]:
            return statistics(scores, sizes[scores.clients])

        return {
            "existing": {
                "as_is": over_clients(evaluation.as_is),
                "adapted": over_clients(evaluation.adapted),
                "participants": over_clients(participants),
            },
            "new": {"before": over_clients(evaluation.before), "after": over_clients(evaluation.after)},
            "train_loss": evaluation.train_loss if math.isfinite(evaluation.train_loss) else None,
        }
