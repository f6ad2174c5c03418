"""A run on one machine: round after round, with evaluation; everything that happened is in `history`."""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from coterie import streams
from coterie.clients.engine import Engine
from coterie.clients.setup import Setup
from coterie.core.data import Index
from coterie.core.method import Round, Tree
from coterie.core.tree import num_bytes
from coterie.measure.cost import Cost
from coterie.measure.evaluate import Evaluation, OnSplit, Scores, evaluate, statistics
from coterie.measure.protocols import Existing, Figures, New, Statistics
from coterie.measure.record import Evaluated, PopulationSize, Record
from coterie.server.participation import Participation
from coterie.server.population import Population
from coterie.server.round import play_round
from coterie.storage.store import PersonalStore

logger = logging.getLogger("coterie")


@dataclass
class Simulation:
    engine: Engine
    reason: str
    """Why this engine."""
    setup: Setup
    participation: Participation
    population: Population
    rounds: int
    eval_every: int
    adapt_steps: int
    eval_clients: int | None = None
    """How many existing and how many new clients are evaluated, at most; all, unless given."""
    eval_last: int = 1
    """So many rounds at the end are evaluated, whatever `eval_every` says."""
    shared: Tree = field(init=False)
    memory: Tree = field(init=False)
    store: PersonalStore = field(init=False)
    history: list[Record] = field(default_factory=list)
    """A record for each round, as in rounds.jsonl."""
    _said: set[str] = field(default_factory=set)
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
        """Of the clients that are there in the last round, and of new ones."""
        return self._evaluate(self.population.present(max(1, len(self.history))))

    def _evaluate(self, present: Index) -> Evaluation:
        existing, new = self._evaluated
        there = set(present.tolist())
        existing = [i for i in existing if i in there]
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
        federation, ids = setup.federation, setup.federation.ids
        before, present = self.population.present(index - 1), self.population.present(index)
        drawn, r = self.participation.draw(len(present), streams.generator(setup.seed, "cohort", index))
        asked = present[drawn]
        answering, r = self.population.answering(asked, r, index)
        cohort, silent = answering.tolist(), np.setdiff1d(asked, answering).tolist()
        rnd = setup.method.plan(Round(index, len(present), int(federation.sizes()[present].sum()), r, setup.seed))
        due = index % self.eval_every == 0 or index > self.rounds - self.eval_last

        sent = self.shared
        played = play_round(self.engine, setup, sent, self.memory, self.store, cohort, rnd, scored=due)
        self.shared, self.memory = played.shared, played.memory
        population = None
        if not np.array_equal(before if index > 1 else federation.existing, present):
            population = PopulationSize(rnd.num_clients, rnd.num_examples)
            logger.info(f"round {index}: {rnd.num_clients:,} clients are there, with {rnd.num_examples:,} examples")
        for remark in played.remarks:
            if remark not in self._said:
                self._said.add(remark)
                logger.warning(f"round {index}: {remark}")
        if played.refused:
            logger.warning(
                f"round {index}: {len(played.refused)} of {len(cohort)} clients sent nothing finite and are left out; "
                "they are no random sample, so the weights of the others are biased"
            )
        if due:
            self.latest = self._evaluate(present)
        return Record(
            round=index,
            cohort=tuple(ids[i] for i in cohort),
            train_loss=played.loss,
            cost=played.cost + Cost(bytes_down=num_bytes(sent) * len(silent)),
            eval=self.measured(self.latest, Scores.of(played.scores)) if due and self.latest else None,
            population=population,
            silent=tuple(ids[i] for i in silent),
            refused=tuple(ids[i] for i in played.refused),
            notes={f"note {n}": remark for n, remark in enumerate(played.remarks, 1)},
        )

    def measured(self, evaluation: Evaluation, participants: Scores) -> Evaluated:
        """Turn an evaluation into statistics over clients."""
        test, validation = self._over_clients("test", evaluation.test), None
        if evaluation.validation is not None:
            validation = self._over_clients("validation", evaluation.validation)
        existing = replace(test.existing, participants=self._statistics("test", participants))
        loss = evaluation.train_loss if math.isfinite(evaluation.train_loss) else None
        return Evaluated(existing, test.new, loss, validation)

    def _over_clients(self, split: str, scores: OnSplit) -> Figures:
        as_is, adapted, before, after = (self._statistics(split, each) for each in scores)
        return Figures(Existing(as_is, adapted), New(before, after))

    def _statistics(self, split: str, scores: Scores) -> Statistics:
        return statistics(scores, self.setup.federation.sizes(split)[scores.clients].astype(np.float64))
