"""The reference engine, which is also the one to debug with.

Each client is computed by itself. On several threads, several clients are computed at the same time, and each of them
uses one thread for its operations. That is faster than using all threads for each operation in turn, and it makes the
results the same, bit by bit, for any number of threads. There are two exceptions, in which one client at a time uses
all threads: a federation of a single client, and a model that draws random numbers, because PyTorch has only one
generator for all threads.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch

from coterie.clients.engine import Call, Engine, Group, reporting, same_examples
from coterie.clients.work import Work
from coterie.clients.workload import Workload
from coterie.core.tree import stack
from coterie.settings import settings
from coterie.streams import torch_seeded

AHEAD = 2
"""Number of clients per thread that may be computed before their results are asked for."""


@settings
class Loop(Engine):
    """each client by itself, one on each thread"""

    def each_client(self, load: Workload, call: Call) -> Iterator[Group]:
        threads = torch.get_num_threads()
        if threads == 1 or load.work.task.is_random or len(load.federation.ids) == 1:
            for place in range(len(call.clients)):
                yield _one(load, load.work, call, place)
            return

        def job(place: int) -> Group:
            # Tensors of its own count changes in place for each thread, so that the function that made one is named.
            own = call._replace(shared={name: value.data for name, value in call.shared.items()})
            with load.work.on_thread() as work:
                return _one(load, work, own, place)

        pool = ThreadPoolExecutor(threads, initializer=_one_thread_per_operation)
        started: deque[Future[Group]] = deque()
        try:
            for place in range(len(call.clients)):
                if len(started) == AHEAD * threads:
                    yield started.popleft().result()
                started.append(pool.submit(job, place))
            while started:
                yield started.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _one_thread_per_operation() -> None:
    """Set the number of threads per operation for this thread."""
    torch.get_num_threads()  # a new thread takes over the number of others at its first use, which must not come later
    torch.set_num_threads(1)


def _one(load: Workload, work: Work, call: Call, place: int) -> Group:
    """Apply the function to one client."""
    client = call.clients[place]
    data = [load.data(client, split, call.round) for split in call.splits]
    own_stream = torch_seeded(int(data[0].stream)) if data and work.task.is_random else nullcontext()
    with reporting(load, call.stage, [client], call.round), same_examples(load, call, data), own_stream:
        results = call.function(work, call.shared, *(kind[place] for kind in call.states), *data)
    return Group([place], tuple(stack([tree]) for tree in results))
