"""The reference engine, and the debugger."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from coterie.clients.engine import ClientFunction, Engine, Group
from coterie.clients.setup import Setup
from coterie.core.tree import Tree, stack
from coterie.settings import settings
from coterie.streams import torch_seeded


@settings
class Loop(Engine):
    """one client after another"""

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
        for place, (client, *mine) in enumerate(zip(clients, *states, strict=True)):
            data = [setup.data(client, split, index)] if split else []
            own_stream = torch_seeded(int(data[0].stream)) if data and setup.task.is_random else nullcontext()
            with own_stream:
                results = function(setup, shared, *mine, *data)
            yield Group([place], tuple(stack([tree]) for tree in results))
