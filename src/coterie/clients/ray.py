"""The cohort in shards, over the workers of a Ray cluster: the processes of one machine, or of many.

A worker has the federation and an engine of the usual kind. It does the local updates of its shard with that engine
and answers with one weighted sum, so that messages do not grow with the cohort.

Personal states stay in the driver's store and travel with their shard both ways. So a worker has nothing to lose, any
worker can do any client, and a checkpoint belongs to the driver alone. The price is one head each way for each client.
"""

import heapq
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from coterie.clients.engine import Call, Cohort, Engine, Group, Results, take
from coterie.clients.machine import check_threads
from coterie.clients.workload import Workload
from coterie.core.method import Tree
from coterie.errors import UserError
from coterie.settings import Gigabytes, Size, settings

if TYPE_CHECKING:
    from coterie.clients.ray_crew import Crew

if find_spec("ray") is None:
    raise UserError("engine.kind = \"ray\" needs Ray, which is not installed: pip install 'coterie[ray]'")


@settings
class Ray(Engine):
    """the cohort in shards, over the workers of a Ray cluster"""

    address: str = ""
    """Address of the cluster; "auto" is the one that runs on this machine, "" starts one on this machine."""
    workers: Size = 0
    """Number of workers; 0 means one for each CPU of the cluster, or for each `threads` CPUs."""
    threads: Size = 0
    """Threads of each worker; 0 means one."""
    memory: Gigabytes = 2.0
    """Memory, in gigabytes, for the clients that one worker computes at once."""

    def unfit(self, load: Workload) -> str | None:
        device = load.federation.x.device.type
        return None if device == "cpu" else f"its workers compute on CPUs, and the run is on {device}"

    def open(self, load: Workload) -> None:
        if not self.address:
            each = f" with engine.threads = {self.threads} each" if self.threads > 1 else ""
            check_threads(f"engine.workers = {self.workers}{each}", self.workers * max(self.threads, 1))
        self._crew.take_up(load)

    def close(self) -> None:
        if "_crew" in vars(self):
            vars(self).pop("_crew").dismiss()

    def each_client(self, load: Workload, call: Call) -> Iterator[Group]:
        parts = self._shards(load, call.clients)
        jobs = [partial(_groups, call._replace(shared={}).part(part)) for part in parts]
        for part, groups in zip(parts, self._crew.do(load, call.shared, jobs), strict=True):
            for places, results in groups:
                yield Group(take(part, places), results)

    def _aggregated(self, load: Workload, cohort: Cohort) -> Results:
        parts = self._shards(load, cohort.clients)
        jobs = [partial(_local_updates, cohort._replace(shared={}).part(part)) for part in parts]
        answers: list[Results] = self._crew.do(load, cohort.shared, jobs)
        results = Results()
        for answer in answers:
            results.merge(answer)
        results.scoring_seconds = max(answer.scoring_seconds for answer in answers)  # they score at the same time
        return results

    def _shards(self, load: Workload, clients: Sequence[int]) -> list[list[int]]:
        return shards(load.federation.sizes()[list(clients)].tolist(), self._crew.size)

    @cached_property
    def _crew(self) -> "Crew":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # what Ray prints would go between the lines of --json
        if not self.address and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
            # Only this process and its children may use the cluster that it starts. Ray alone would take the token in
            # the user's home, which all of the user's processes have.
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        from coterie.clients.ray_crew import Crew  # imports Ray, which reads these when it is imported

        return Crew(self.address, self.workers, self.threads, self.memory)


def shards(sizes: Sequence[int], number: int) -> list[list[int]]:
    """Deal places into parts with about the same number of examples: the largest client first, to the smallest part."""
    parts: list[list[int]] = [[] for _ in range(min(number, len(sizes)))]
    loads = [(0, k) for k in range(len(parts))]
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        load, k = loads[0]
        parts[k].append(place)
        heapq.heapreplace(loads, (load + sizes[place] + 1, k))  # a client without examples is work, too
    return [sorted(part) for part in parts]


# -- what a worker does, with its own engine and workload and the shared model that all jobs of a call have


def _groups(call: Call, engine: Engine, load: Workload, shared: Tree) -> list[Group]:
    return list(engine.each_client(load, call._replace(shared=shared)))


def _local_updates(cohort: Cohort, engine: Engine, load: Workload, shared: Tree) -> Results:
    return engine.local_updates(load, cohort._replace(shared=shared))
