"""Many small clients at once, by torch.func.vmap: the method's own functions, padded and masked."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

from torch.func import vmap

from coterie.clients.engine import ClientFunction, Engine, Group
from coterie.clients.setup import Setup
from coterie.core.tree import Tree, num_bytes, stack
from coterie.settings import Gigabytes, settings

COPIES = 4
"""Of a client's model that are alive at once: parameters, gradient, the stepped ones, the message."""


@settings
class Vmap(Engine):
    """clients of similar size together, as one batched computation"""

    memory: Gigabytes = 2.0
    """What the clients that are computed at once may take."""

    def unfit(self, setup: Setup) -> str | None:
        if setup.task.is_graph:
            return "the examples of a client are the nodes of one graph"
        if setup.task.is_random:
            return "the model draws random numbers (dropout), each client's from a stream of its own"
        if not setup.task.runs_batched:
            return "the model does not run under torch.func.vmap, as where the values of a tensor decide what is done"
        return None

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
        own_copy = set(setup.task.buffers)  # a pass changes them, for each client otherwise
        in_dims = ({name: 0 if name in own_copy else None for name in shared}, *[0] * len(states), *[0] * bool(split))
        batched = vmap(partial(function, setup), in_dims=in_dims)
        sizes = setup.federation.sizes(split)[list(clients)].tolist() if split else [0] * len(clients)
        for places in groups(setup, sizes, states):
            largest = max(sizes[place] for place in places)
            for part in chunks(places, self.at_once(setup, largest)):
                mine = [stack([kind[place] for place in part]) for kind in states]
                data = [setup.gather([clients[place] for place in part], split, index)] if split else []
                given = {
                    name: value.expand(len(part), *value.shape) if name in own_copy else value
                    for name, value in shared.items()
                }
                yield Group(part, batched(given, *mine, *data))

    def at_once(self, setup: Setup, num_examples: int) -> int:
        """How many clients of that size fit."""
        model = num_bytes(setup.task.initial)
        return max(1, int(self.memory * 1e9 / (COPIES * model + num_examples * setup.task.example_bytes)))


def groups(setup: Setup, sizes: Sequence[int], states: Sequence[Sequence[Tree]]) -> list[list[int]]:
    """Places of clients that can be stacked: trees of one shape, and sizes that differ by a half at most."""
    alike: dict[Any, list[int]] = defaultdict(list)
    exactly = setup.task.mixes_examples
    for place, size in enumerate(sizes):
        shapes = tuple((name, value.shape) for kind in states for name, value in kind[place].items())
        alike[size if exactly else half_octave(size), shapes].append(place)
    return list(alike.values())


@cache
def half_octave(size: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few groups, and never more than a third of padding."""
    power = 1 << max(size - 1, 0).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def chunks(places: list[int], size: int) -> Iterator[list[int]]:
    for start in range(0, len(places), size):
        yield places[start : start + size]
