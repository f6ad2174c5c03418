"""A run on the server's side: round after round, with evaluation."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from coterie import streams
from coterie.clients.clients import Clients
from coterie.core.answers import memory_of, planned, shared_of
from coterie.core.data import Index
from coterie.core.method import Method, Round, Task, Tree
from coterie.core.tree import num_bytes
from coterie.measure.cost import Cost
from coterie.measure.evaluate import Evaluation, Scores, evaluate, measured
from coterie.measure.record import PopulationSize, Record
from coterie.server.participation import Participation
from coterie.server.population import Presence
from coterie.server.round import play_round
from coterie.server.stopping import StoppingRule, StopSettings

logger = logging.getLogger("coterie")


@dataclass
class Rounds:
    """The rounds of a run, and the state of the server between them."""

    method: Method
    task: Task
    clients: Clients
    participation: Participation
    population: Presence
    seed: int
    num_rounds: int
    """Number of rounds to play."""
    eval_every: int
    """Number of rounds between evaluations."""
    adapt_steps: int
    """Number of local steps (or Epochs) of adaptation."""
    eval_clients: int | None = None
    """Maximum number of existing and of new clients that are evaluated; None means all."""
    eval_last: int = 1
    """Number of rounds at the end that are always evaluated."""
    stop: StopSettings = field(default_factory=StopSettings)
    """When to end before the last round."""
    shared: Tree = field(init=False)
    memory: Tree = field(init=False)
    history: list[Record] = field(default_factory=list)
    """The record of each round."""
    latest: Evaluation | None = None
    """The evaluation of the last round that was evaluated."""
    on_evaluate: Callable[[int], object] = lambda _: None
    """Called before each evaluation, with the number of clients that will be evaluated."""
    _shown: set[str] = field(default_factory=set)
    _everyone: PopulationSize = field(init=False)
    """Size of the population if all clients are present that the run begins with."""
    _size: PopulationSize | None = None
    """Size of the population in the last round, once it is known."""

    def __post_init__(self) -> None:
        self.shared = shared_of(self.method, self.task)
        self.memory = memory_of(self.method, self.task, self.shared)
        self._everyone = PopulationSize(len(self.existing), int(self.clients.sizes()[self.existing].sum()))

    @property
    def existing(self) -> Index:
        """Clients that may take part."""
        return np.flatnonzero(~self.clients.is_new)

    @property
    def new(self) -> Index:
        """Clients that are held out, as new users."""
        return np.flatnonzero(self.clients.is_new)

    @property
    def stopping(self) -> StoppingRule:
        """The rule that may end the run before its last round."""
        return StoppingRule(self.stop, self.eval_every)

    @property
    def is_over(self) -> bool:
        """Whether all rounds are played, or the stopping rule is met."""
        return len(self.history) >= self.num_rounds or self.stopping.is_met(self.history)

    def play(self) -> Iterator[Record]:
        """Play the rounds that are left. A record is yielded once its round is part of the state and the history."""
        while not self.is_over:
            record = self._next_round()
            self.history.append(record)
            yield record

    def evaluate(self) -> Evaluation:
        """Evaluate the clients that are present in the last round, and new users."""
        return self._evaluate(self.population.present(max(1, len(self.history))))

    def _evaluate(self, present: Index) -> Evaluation:
        existing, new = self._evaluated
        there = set(present.tolist())
        existing = [i for i in existing if i in there]
        self.on_evaluate(len(existing) + len(new))
        return evaluate(self.clients, self.shared, self.adapt_steps, existing, new)

    @property
    def _evaluated(self) -> tuple[list[int], list[int]]:
        """Existing and new clients that are evaluated: all, or a sample that stays the same throughout a run."""
        rng = streams.generator(self.seed, "evaluated")
        existing = np.sort(rng.permutation(self.existing)[: self.eval_clients]).tolist()
        new = np.sort(rng.permutation(self.new)[: self.eval_clients]).tolist()
        return existing, new

    def drawn(self, index: int) -> tuple[Index, Index, Round]:
        """Draw the cohort of a round. Returns (clients that are asked, those that answer, the round as announced)."""
        present = self.population.present(index)
        process = self.participation.among(present)
        places, expected = process.draw(len(present), streams.generator(self.seed, "cohort", index))
        asked = present[places]
        answering, r = self.population.answering(asked, expected, index)
        examples = int(self.clients.sizes()[present].sum())
        rnd = planned(self.method, Round(index, len(present), examples, r, self.seed))
        if (chances := self.participation.chances(answering)) is not None:
            rnd = replace(rnd, chance=torch.from_numpy(chances * (r / expected)))
        return asked, answering, rnd

    def _next_round(self) -> Record:
        index, ids = len(self.history) + 1, self.clients.ids
        before, present = self.population.present(index - 1), self.population.present(index)
        asked, answering, rnd = self.drawn(index)
        cohort, silent = answering.tolist(), np.setdiff1d(asked, answering).tolist()
        due = index % self.eval_every == 0 or index > self.num_rounds - self.eval_last

        sent, start = self.shared, time.perf_counter()
        played = play_round(self.method, self.task, self.clients, sent, self.memory, cohort, rnd, scored=due)
        self.shared, self.memory = played.shared, played.memory
        size = PopulationSize(rnd.num_clients, rnd.num_examples)
        changed = not np.array_equal(before if index > 1 else self.existing, present) or size != self._size_before()
        self._size, eval_seconds = size, 0.0
        if due:
            self.latest = self._evaluate(present)
            eval_seconds = time.perf_counter() - start - played.cost.seconds
        record = Record(
            round=index,
            cohort=tuple(ids[i] for i in cohort),
            train_loss=played.loss,
            cost=played.cost + Cost(bytes_down=num_bytes(sent) * len(silent), eval_seconds=eval_seconds),
            eval=measured(self.clients, self.latest, Scores.of(played.scores)) if due and self.latest else None,
            population=size if changed else None,
            silent=tuple(ids[i] for i in silent),
            refused={ids[i]: why for i, why in played.refused.items()},
            digests={ids[i]: digest for i, digest in played.digests.items()},
            notes=played.notes,
        )
        self._log(record)
        return record

    def _size_before(self) -> PopulationSize:
        """Return the size of the population in the last round as the records tell it, also if the run was stopped."""
        if self._size is None:
            sizes = (record.population for record in reversed(self.history) if record.population)
            self._size = next(sizes, self._everyone)
        return self._size

    def _log(self, record: Record) -> None:
        if record.population:
            clients, examples = record.population.clients, record.population.examples
            logger.info(f"round {record.round}: {clients:,} clients are present, with {examples:,} examples")
        for name, note in record.notes.items():
            if isinstance(note, str):
                self._warn_once(name, f"round {record.round}: {note}")
        if not record.cohort:
            self._warn_once("", f"round {record.round}: no client took part, so the shared model stays as it was")
        if record.refused:
            first, why = next(iter(record.refused.items()))
            logger.warning(
                f"round {record.round}: the replies of {len(record.refused)} of {len(record.cohort)} clients were "
                f"refused and are left out. Client {first!r}: {why}. They are not a random sample, so the weights of "
                "the others are biased"
            )
        if record.eval:
            logger.info(record.told(self.task.objective.score))

    def _warn_once(self, about: str, text: str) -> None:
        """Log a warning, unless there was one about the same thing."""
        if about not in self._shown:
            self._shown.add(about)
            logger.warning(f"{text} (later rounds like this one are not reported)")
