"""A run on one machine: round after round, with evaluation; everything that happened is in `history`."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie import streams
from coterie.cost import Cost, local_work
from coterie.engine.round import Setup, play_round
from coterie.engine.sampler import Participation
from coterie.engine.store import PersonalStore
from coterie.evaluate import Evaluation, Score, Scores, evaluate, score, statistics
from coterie.method import Round, Tree

Record = dict[str, Any]


@dataclass
class Simulation:
    setup: Setup
    participation: Participation
    rounds: int
    eval_every: int
    adapt_steps: int
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
        self.store = PersonalStore(self.setup.create)

    def play(self) -> Iterator[Record]:
        """The rounds that are left; each is in the state and in the history when its record is given out."""
        while len(self.history) < self.rounds:
            record = self._next_round()
            self.history.append(record)
            yield record

    def evaluate(self) -> Evaluation:
        return evaluate(self.setup, self.shared, self.store, self.adapt_steps)

    def _next_round(self) -> Record:
        setup, index = self.setup, len(self.history) + 1
        existing = setup.federation.existing
        drawn, r = self.participation.draw(len(existing), streams.generator(setup.seed, "cohort", index))
        cohort = existing[drawn].tolist()
        num_examples = int(setup.federation.sizes()[existing].sum())
        rnd = setup.method.plan(Round(index, len(existing), num_examples, r, setup.seed))
        due = index % self.eval_every == 0 or index == self.rounds
        participants: dict[int, Score] = {}
        spent_scoring = 0.0

        def observe(client: int, shared: Tree, personal: Tree) -> None:
            nonlocal spent_scoring
            if due:
                start = time.perf_counter()
                participants[client] = score(setup, client, shared, personal)
                spent_scoring += time.perf_counter() - start

        start = time.perf_counter()
        played = play_round(setup, self.shared, self.memory, self.store, cohort, rnd, observe)
        seconds = time.perf_counter() - start - spent_scoring
        self.shared, self.memory = played.shared, played.memory
        cost = local_work(setup, cohort, rnd) + Cost(played.bytes_down, played.bytes_up, seconds=seconds)
        record = {"round": index, "cohort": [setup.federation.ids[i] for i in cohort], "train_loss": played.loss}
        if played.refused:
            record["refused"] = [setup.federation.ids[i] for i in played.refused]
        if due:
            self.latest = self.evaluate()
            record["eval"] = self.measured(self.latest, Scores.of(list(participants), list(participants.values())))
        return {**record, "cost": cost.as_dict()}

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
