"""Many small clients at once, by torch.func.vmap: the method's own functions on padded and masked data."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torch.func import vmap

from coterie.clients.engine import Call, Engine, Group, reporting, same_examples, take
from coterie.clients.workload import Workload
from coterie.core.data import Data
from coterie.core.tree import Tree, num_bytes, stack
from coterie.settings import Gigabytes, settings

COPIES = 4
"""Copies of a client's model that are alive at once: parameters, gradient, stepped parameters, reply."""

ONE_MASK = Data(0, 0, None, 0, 0)  # type: ignore[arg-type]
"""Axes of the clients in Data if they share one mask."""


@settings
class Vmap(Engine):
    """clients of similar size together, as one batched computation"""

    memory: Gigabytes = 2.0
    """Memory, in gigabytes, for the clients that are computed at once."""

    def unfit(self, load: Workload) -> str | None:
        if load.work.task.is_graph:
            return "the examples of a client are the nodes of one graph"
        if load.work.task.is_random:
            return "the model draws random numbers (dropout), and each client draws from a stream of its own"
        if not load.work.probe.runs_batched:
            return "the model does not run under torch.func.vmap, for example because it branches on values of a tensor"
        return None

    def each_client(self, load: Workload, call: Call) -> Iterator[Group]:
        own_copy = set(load.work.task.buffers)  # a pass changes them differently for each client
        common = {name: 0 if name in own_copy else None for name in call.shared}
        function = partial(call.function, load.work)
        sizes = load.sizes(call.clients, call.splits)
        for places in groups(load, sizes, call.states):
            largest = max(sum(sizes[place]) for place in places)
            for part in chunks(places, self.at_once(load, largest)):
                mine = [stack(take(kind, part)) for kind in call.states]
                clients, lengths = take(call.clients, part), zip(*take(sizes, part), strict=True)
                data = [load.gather(clients, split, call.round) for split in call.splits]
                data = [_with_one_mask(*pair) for pair in zip(data, lengths, strict=True)]
                axes = [*[0] * len(mine), *(ONE_MASK if each.mask.ndim == 1 else 0 for each in data)]
                given = {
                    name: value.expand(len(part), *value.shape) if name in own_copy else value
                    for name, value in call.shared.items()
                }
                with reporting(load, call.stage, clients, call.round, batched=True), same_examples(load, call, data):
                    results = vmap(function, in_dims=(common, *axes))(given, *mine, *data)
                yield Group(part, results)

    def at_once(self, load: Workload, num_examples: int) -> int:
        """Return how many clients of that size fit into memory."""
        task = load.work.task
        each = COPIES * num_bytes(task.initial) + num_examples * load.work.probe.example_bytes
        if task.chain is not None:  # products of all pairs of examples, see core/steps/dense_layers.py
            each += num_examples**2 * load.federation.x.element_size()
        return max(1, int(self.memory * 1e9 / each))


def _with_one_mask(data: Data, sizes: Sequence[int]) -> Data:
    """Give all clients one mask if they have the same size, so that they know that nothing is padding."""
    return data._replace(mask=data.mask[0]) if len(set(sizes)) == 1 else data


def groups(load: Workload, sizes: Sequence[tuple[int, ...]], states: Sequence[Sequence[Tree]]) -> list[list[int]]:
    """Return the places of clients that can be stacked: trees of one shape, and sizes that differ by at most a half.

    `sizes` has the sizes of each client, one for each split.
    """
    alike: dict[Any, list[int]] = defaultdict(list)
    exactly = load.work.task.mixes_examples
    rounded = {own: own if exactly else tuple(map(half_octave, own)) for own in set(sizes)}
    shapes: list[Any] = [()] * len(sizes)
    for kind in states:
        if any(kind):
            mine = (tuple((name, value.shape) for name, value in tree.items()) for tree in kind)
            shapes = list(zip(shapes, mine, strict=True))
    for place, (own, shape) in enumerate(zip(sizes, shapes, strict=True)):
        alike[rounded[own], shape].append(place)
    return list(alike.values())


def half_octave(size: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: few groups, and never more than a third of padding."""
    power = 1 << max(size - 1, 0).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


def chunks(places: list[int], size: int) -> Iterator[list[int]]:
    """Cut places into parts of at most that size."""
    for start in range(0, len(places), size):
        yield places[start : start + size]
