"""The reference engine, which is also the one to debug with."""

from collections.abc import Iterator
from contextlib import nullcontext

from coterie.clients.engine import Call, Engine, Group, reporting
from coterie.clients.workload import Workload
from coterie.core.tree import stack
from coterie.settings import settings
from coterie.streams import torch_seeded


@settings
class Loop(Engine):
    """one client after another"""

    def each_client(self, load: Workload, call: Call) -> Iterator[Group]:
        for place, (client, *mine) in enumerate(zip(call.clients, *call.states, strict=True)):
            data = [load.data(client, split, call.round) for split in call.splits]
            own_stream = torch_seeded(int(data[0].stream)) if data and load.work.task.is_random else nullcontext()
            with reporting(load, call.stage, [client], call.round), own_stream:
                results = call.function(load.work, call.shared, *mine, *data)
            yield Group([place], tuple(stack([tree]) for tree in results))
