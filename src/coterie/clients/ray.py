"""The cohort in shards, over the workers of a Ray cluster: the processes of one machine, or of many.

A worker has the federation and an engine of the usual kind. It does the local updates of its shard with that, and
answers with one weighted sum, so that the messages do not grow with the cohort.

Personal states stay in the driver's store and travel with their shard both ways. So a worker has nothing to lose, any
worker can do any client, and a checkpoint is the driver's alone; the price is a head each way for each client.
"""

import heapq
import os
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from coterie.clients.engine import ClientFunction, Engine, Group, Replies
from coterie.clients.setup import Setup
from coterie.core.method import Round, Tree
from coterie.errors import UserError
from coterie.settings import Gigabytes, Size, settings

if TYPE_CHECKING:
    from coterie.clients.ray_crew import Crew

T = TypeVar("T")

if find_spec("ray") is None:
    raise UserError("engine.kind = \"ray\" needs Ray, which is not installed: pip install 'coterie[ray]'")


@settings
class Ray(Engine):
    """the cohort in shards, over the workers of a Ray cluster"""

    address: str = ""
    """Of the cluster; "auto" is the one that runs on this machine, and "" a new one, of this machine alone."""
    workers: Size = 0
    """0 is one for each CPU of the cluster, or for each `threads` of them."""
    threads: Size = 0
    """Of each worker; 0 is one."""
    memory: Gigabytes = 2.0
    """What the clients that one worker computes at once may take."""

    def unfit(self, setup: Setup) -> str | None:
        device = setup.federation.x.device.type
        return None if device == "cpu" else f"its workers compute on CPUs, and the run is on {device}"

    def open(self, setup: Setup) -> None:
        self._crew.take_up(setup)

    def close(self) -> None:
        if "_crew" in vars(self):
            vars(self).pop("_crew").dismiss()

    def each_client(
        self,
        setup: Setup,
        function: ClientFunction,
        shared: Tree,
        clients: Sequence[int],
        *states: Sequence[Tree],
        split: str | None = None,
        index: int = 0,
    ) -> Iterator[Group]:
        parts = self._shards(setup, clients, split or "train")
        work = partial(_groups, function, split, index)
        jobs = [partial(work, _of(clients, part), [_of(kind, part) for kind in states]) for part in parts]
        for part, groups in zip(parts, self._crew.do(setup, shared, jobs), strict=True):
            for places, results in groups:
                yield Group(_of(part, places), results)

    def local_updates(
        self,
        setup: Setup,
        shared: Tree,
        clients: Sequence[int],
        personal: Sequence[Tree],
        weights: Tensor,
        rnd: Round,
        scored: bool,
    ) -> Replies:
        jobs = [
            partial(_local_updates, _of(clients, part), _of(personal, part), weights[part], rnd, scored)
            for part in self._shards(setup, clients)
        ]
        answers: list[Replies] = self._crew.do(setup, shared, jobs)
        replies = Replies(setup.aggregate.start())
        for answer in answers:
            replies.merge(answer)
        replies.scoring_seconds = max(answer.scoring_seconds for answer in answers)  # they score at the same time
        return replies

    def adapted_scores(
        self,
        setup: Setup,
        shared: Tree,
        clients: Sequence[int],
        personal: Sequence[Tree],
        steps: int,
        splits: Sequence[str],
    ) -> dict[str, dict[int, Tree]]:
        jobs = [
            partial(_adapted_scores, _of(clients, part), _of(personal, part), steps, splits)
            for part in self._shards(setup, clients)
        ]
        answers: list[dict[str, dict[int, Tree]]] = self._crew.do(setup, shared, jobs)
        return {split: dict(pair for found in answers for pair in found[split].items()) for split in splits}

    def _shards(self, setup: Setup, clients: Sequence[int], split: str = "train") -> list[list[int]]:
        return shards(setup.federation.sizes(split)[list(clients)].tolist(), self._crew.size)

    @cached_property
    def _crew(self) -> "Crew":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # what Ray prints would go between the lines of --json
        from coterie.clients.ray_crew import Crew  # imports Ray, which reads these when it is imported

        return Crew(self.address, self.workers, self.threads, self.memory)


def shards(sizes: Sequence[int], number: int) -> list[list[int]]:
    """Places, in so many parts with about as many examples each: the largest client first, to whoever has least."""
    parts: list[list[int]] = [[] for _ in range(min(number, len(sizes)))]
    loads = [(0, k) for k in range(len(parts))]
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        load, k = loads[0]
        parts[k].append(place)
        heapq.heapreplace(loads, (load + sizes[place] + 1, k))  # a client without examples is work, too
    return [sorted(part) for part in parts]


def _of(values: Sequence[T], places: Sequence[int]) -> list[T]:
    return [values[place] for place in places]


# -- what a worker does, with an engine of its own; the last three arguments are the worker's


def _groups(
    function: ClientFunction,
    split: str | None,
    index: int,
    clients: Sequence[int],
    states: Sequence[Sequence[Tree]],
    engine: Engine,
    setup: Setup,
    shared: Tree,
) -> list[Group]:
    return list(engine.each_client(setup, function, shared, clients, *states, split=split, index=index))


def _local_updates(
    clients: Sequence[int],
    personal: Sequence[Tree],
    weights: Tensor,
    rnd: Round,
    scored: bool,
    engine: Engine,
    setup: Setup,
    shared: Tree,
) -> Replies:
    return engine.local_updates(setup, shared, clients, personal, weights, rnd, scored)


def _adapted_scores(
    clients: Sequence[int],
    personal: Sequence[Tree],
    steps: int,
    splits: Sequence[str],
    engine: Engine,
    setup: Setup,
    shared: Tree,
) -> dict[str, dict[int, Tree]]:
    return engine.adapted_scores(setup, shared, clients, personal, steps, splits)
