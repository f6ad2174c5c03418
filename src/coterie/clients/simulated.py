"""Simulated clients: a federation, a store of personal states and an engine in one process."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from coterie import registry
from coterie.clients import work
from coterie.clients.clients import Clients, Replies, Scored
from coterie.clients.engine import Call, Cohort, Engine, reporting, take
from coterie.clients.workload import Workload
from coterie.core.counting import CountFlops
from coterie.core.data import Index
from coterie.core.method import Prepares, Receives, Round, Tree
from coterie.core.tree import moved, num_bytes
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
        self.engine_name = registry.name_of("engine", engine)
        self.reason = f"{engine.__doc__} ({reason})"
        federation = load.federation
        self.ids = federation.ids
        self.is_new = federation.is_new
        self.classes = federation.classes
        self.splits = [split for split in ("test", "validation") if split in federation.splits]
        self.store = PersonalStore(self._create, len(self.ids), federation.x.device)
        self._pending: dict[int, Tree] = {}
        """New personal states of the last cohort, until the round counts."""
        self._owed: dict[int, int] = {}
        """Operations by which clients prepared, until their first round counts them."""
        self._prepared = 0

    def sizes(self, split: str = "train") -> Index:
        return self.load.federation.sizes(split)

    def update(self, shared: Tree, cohort: Sequence[int], weights: Tensor, rnd: Round, scored: bool) -> Replies:
        whole = Cohort(shared, cohort, self._personal(cohort), weights, rnd, scored)
        results = self.engine.local_updates(self.load, whole)
        agreed = results.agreed()
        self._pending = agreed.personal if agreed else {}
        sizes = self.sizes()[list(cohort)].tolist()
        each = list(zip(sizes, self.load.widths(cohort), strict=True))
        cost = local_work(self.load.work.method, self.load.work.probe, each, rnd.common)
        owed = sum(self._owed.pop(client, 0) for client in cohort)
        return Replies(
            agreed.total.result() if agreed else None,
            list(self._pending),
            agreed.letters if agreed else {},
            results.refused,
            results.scores,
            cost + Cost(bytes_up=results.bytes_up, flops=owed),
            results.scoring_seconds,
        )

    def keep(self, shared: Tree, letters: Mapping[int, Tree], rnd: Round) -> None:
        kept, self._pending = self._pending, {}
        if isinstance(self.load.work.method, Receives):
            states = (list(kept.values()),)
            kept = self.engine.answers(
                self.load, Call(partial(work.receive, rnd=rnd.common), shared, list(kept), states)
            )
        if any(letters.values()):
            arrived = (list(kept.values()), [letters[client] for client in kept])
            kept = self.engine.answers(self.load, Call(partial(work.read, rnd=rnd.common), {}, list(kept), arrived))
        self.store.put(kept)

    def score(self, shared: Tree, who: Sequence[int], adapt_steps: int) -> Scored:
        states, splits = self._personal(who), ("train", *self.splits)
        call = Call(partial(work.evaluate, steps=adapt_steps), shared, who, (states,), splits)
        stored = dict(zip(who, map(num_bytes, states), strict=True))
        scored = Scored({split: {} for split in splits}, {split: {} for split in splits}, stored)
        for group in self.engine.each_client(self.load, call):
            clients, counts = take(who, group.places), group.numbers()
            for split, as_is, adapted in zip(splits, counts[::2], counts[1::2], strict=True):
                scored.as_is[split].update(zip(clients, as_is, strict=True))
                scored.adapted[split].update(zip(clients, adapted, strict=True))
            self.on_scored(len(clients))
        return scored

    def personal(self, client: int) -> Tree:
        return self._personal([client])[0]

    def fingerprint(self) -> str:
        return self.load.federation.fingerprint()

    def _personal(self, clients: Sequence[int]) -> list[Tree]:
        """Return personal states. A client prepares when its state is first asked for."""
        for client in clients if isinstance(self.load.work.method, Prepares) else ():
            if self.store.is_unvisited(client):
                self._prepare(client)
        return self.store.fetch(clients)

    def _prepare(self, client: int) -> None:
        with CountFlops() as counted:
            data = self.load.data(client, "train", 0)
            (created,) = moved([self._create(client)], data.y.device)
            with reporting(self.load, "prepare", [client]):
                self.store[client] = self.load.work.prepare(self.ids[client], created, data)
        self._owed[client] = counted.total
        self._prepared += 1
        self.on_prepared(self._prepared)

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
