"""Simulated clients: a federation, a store of personal states and an engine in one process."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from coterie.clients import work
from coterie.clients.clients import Clients, Replies, Scored
from coterie.clients.engine import Call, Cohort, Engine, reporting
from coterie.clients.workload import Workload
from coterie.core.counting import CountFlops
from coterie.core.data import Index
from coterie.core.method import Prepares, Receives, Round, Tree
from coterie.measure.cost import Cost, local_work
from coterie.storage.checkpoint import load_checkpoint, save_checkpoint
from coterie.storage.store import PersonalStore

OWED = "owed"
"""Name of the tree, in a checkpoint, of what preparation has cost and no round has counted yet."""


class Simulated(Clients):
    """All clients of a federation, computed here by an engine."""

    def __init__(self, load: Workload, engine: Engine, reason: str = "") -> None:
        self.load = load
        self.engine = engine
        self.reason = reason
        """Why this engine was chosen."""
        federation = load.federation
        self.ids = federation.ids
        self.is_new = federation.is_new
        self.splits = [split for split in ("test", "validation") if split in federation.splits]
        self.store = PersonalStore(self._create, len(self.ids), federation.x.device)
        self.on_prepared: Callable[[int], object] = lambda _: None
        """Called with the number of clients that have prepared so far, each time that one has."""
        self.on_scored: Callable[[int], object] = lambda _: None
        """Called during an evaluation, each time that some clients were scored, with their number."""
        self._pending: dict[int, Tree] = {}
        """New personal states of the last cohort, until the round counts."""
        self._owed: dict[int, int] = {}
        """Operations by which clients prepared, until their first round counts them."""
        self._prepared = 0

    def sizes(self, split: str = "train") -> Index:
        return self.load.federation.sizes(split)

    def update(self, shared: Tree, cohort: Sequence[int], weights: Tensor, rnd: Round, scored: bool) -> Replies:
        personal = [self.personal(client) for client in cohort]
        results = self.engine.local_updates(self.load, Cohort(shared, cohort, personal, weights, rnd, scored))
        agreed = results.agreed()
        self._pending = agreed.personal if agreed else {}
        sizes = self.sizes()[list(cohort)].tolist()
        outputs = [self.load.num_outputs(client) for client in cohort]
        cost = local_work(self.load.work.method, self.load.work.probe, list(zip(sizes, outputs, strict=True)), rnd)
        owed = sum(self._owed.pop(client, 0) for client in cohort)
        return Replies(
            agreed.total.result() if agreed else None,
            list(self._pending),
            results.refused,
            results.scores,
            cost + Cost(bytes_up=results.bytes_up, flops=owed),
            results.scoring_seconds,
        )

    def keep(self, shared: Tree, rnd: Round) -> None:
        kept, self._pending = self._pending, {}
        if isinstance(self.load.work.method, Receives):
            states = (list(kept.values()),)
            kept = self.engine.answers(self.load, Call(partial(work.receive, rnd=rnd), shared, list(kept), states))
        for client, personal in kept.items():
            self.store[client] = personal

    def score(self, shared: Tree, who: Sequence[int], adapt_steps: int) -> Scored:
        states = ([self.personal(client) for client in who],)
        adapt = Call(partial(work.adapt, steps=adapt_steps), shared, who, states, "train")
        adapted = self.engine.adapted_scores(self.load, adapt, self.splits, self.on_scored)
        as_is = Call(work.score, shared, who, states)
        plain = {split: self.engine.answers(self.load, as_is._replace(split=split)) for split in self.splits}
        losses = self.engine.answers(self.load, Call(work.train_loss, shared, who, states, "train"))
        return Scored(plain, adapted, {client: float(tree["loss"]) for client, tree in losses.items()})

    def personal(self, client: int) -> Tree:
        """Return a client's personal state. A client prepares when its state is first asked for."""
        prepares = isinstance(self.load.work.method, Prepares)
        if prepares and self.store.is_unvisited(client):
            with CountFlops() as counted:
                created, data = self._create(client), self.load.data(client, "train", 0)
                with reporting(self.load, "prepare", [client]):
                    self.store[client] = self.load.work.prepare(self.ids[client], created, data)
            self._owed[client] = counted.total
            self._prepared += 1
            self.on_prepared(self._prepared)
        return self.store[client]

    def save(self, folder: Path, index: int, trees: Mapping[str, Tree], run: str) -> None:
        owed = {"clients": torch.tensor(list(self._owed)), "flops": torch.tensor(list(self._owed.values()))}
        save_checkpoint(folder, index, {**trees, OWED: owed} if self._owed else trees, self.store, run)

    def restore(self, folder: Path, run: str) -> tuple[int, dict[str, Tree]]:
        index, trees = load_checkpoint(folder, self.store, run)
        if owed := trees.pop(OWED, None):
            self._owed = dict(zip(owed["clients"].tolist(), owed["flops"].tolist(), strict=True))
        return index, trees

    def close(self) -> None:
        self.engine.close()

    def _create(self, client: int) -> Tree:
        with reporting(self.load, "init_personal", [client]):
            return self.load.work.create(self.ids[client], self.load.num_outputs(client))
