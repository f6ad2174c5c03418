"""Personal states of clients between their visits, in memory until the next checkpoint and in its segments afterwards.

A million clients need a few megabytes: two small integers per client say where its newest state is stored. A checkpoint
writes the states that changed since the last one as a new segment. It also does two things to keep the disk tidy:

- It rewrites a segment of which less than half is still current, so that the disk holds at most twice the current
  states. Each byte that is copied this way is paid for by a byte that became obsolete.
- It merges segments once FAN of them have about the same size, so that there are only a few. A state is copied this way
  once for each power of FAN.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.tree import Tree, moved
from coterie.storage.segments import Rows, Segment, fresh_blocks, write_segment

FAN = 16
"""Number of segments of about the same size that are merged."""
NOWHERE = -1
"""Place of a client without a state on the disk."""


class Layout(NamedTuple):
    """Location of the newest state of each client on the disk."""

    segments: list[Segment]
    place: NDArray[np.int16]
    """Index of the segment, for each client."""
    row: NDArray[np.int32]
    """Row within the segment, for each client."""

    @classmethod
    def empty(cls, num_clients: int) -> "Layout":
        """Return a layout without any state on the disk."""
        return cls([], np.full(num_clients, NOWHERE, np.int16), np.zeros(num_clients, np.int32))

    def append(self, segment: Segment) -> None:
        """Add a segment whose rows are newer than all others."""
        clients = segment.clients()
        self.place[clients] = len(self.segments)
        self.row[clients] = np.arange(len(clients))
        self.segments.append(segment)


class PersonalStore:
    """Personal states by client. A client that was never visited has the state `create` returns and needs no memory.

    Trees are copied when they are stored and when they are read, so it does not matter whether a state is on the disk.
    """

    def __init__(self, create: Callable[[int], Tree], num_clients: int, device: torch.device) -> None:
        self._create = create
        self._device = device
        self._fresh: dict[int, Tree] = {}
        """States that changed since the last checkpoint, on the CPU."""
        self._layout = Layout.empty(num_clients)

    def __getitem__(self, client: int) -> Tree:
        return self.fetch([client])[0]

    def __setitem__(self, client: int, personal: Tree) -> None:
        self.put({client: personal})

    def fetch(self, clients: Sequence[int]) -> list[Tree]:
        """Return the states of some clients. They go to the device together."""
        if self._is_empty:
            return [{} for _ in clients]
        return moved([self._read(client) for client in clients], self._device)

    def put(self, states: Mapping[int, Tree]) -> None:
        """Store the states of some clients. They leave the device together."""
        if not any(states.values()) and self._is_empty:
            return
        for client, personal in zip(states, moved(list(states.values()), torch.device("cpu")), strict=True):
            if personal or not self.is_unvisited(client) or not self._starts_empty:
                self._fresh[client] = {
                    name: value.detach().clone(memory_format=torch.contiguous_format)
                    for name, value in personal.items()
                }

    def _read(self, client: int) -> Tree:
        if client in self._fresh:
            return {name: value.clone() for name, value in self._fresh[client].items()}
        segments, place, row = self._layout
        if place[client] == NOWHERE:
            return {} if self._starts_empty else self._create(client)
        return segments[int(place[client])][int(row[client])]

    def write(self, folder: Path) -> Layout:
        """Write the states that are only in memory to the disk. Pass the result to `adopt` to start using it."""
        if not self._fresh:
            return self._layout
        segments, place, row = self._layout
        place = place.copy()
        place[list(self._fresh)] = NOWHERE
        live = [row[place == k].astype(np.int64) for k in range(len(segments))]
        merged = _to_merge(segments, live, len(self._fresh))
        blocks = (block for k in merged for block in segments[k].blocks(live[k]))
        segment = write_segment(folder, [*fresh_blocks(self._fresh), *blocks])

        kept = [k for k in range(len(segments)) if k not in merged]
        renumbered = np.full(len(segments) + 1, NOWHERE, np.int16)  # the last is found by NOWHERE = -1
        renumbered[kept] = np.arange(len(kept))
        layout = Layout([segments[k] for k in kept], renumbered[place], row.copy())
        layout.append(segment)
        return layout

    def adopt(self, layout: Layout) -> None:
        """Read states from the disk from now on."""
        self._layout = layout
        self._fresh = {}

    def restore(self, segments: list[Segment]) -> None:
        """Take over the states of a checkpoint that consists of these segments."""
        layout = Layout.empty(len(self._layout.place))
        for segment in segments:
            layout.append(segment)
        self.adopt(layout)

    @property
    def _is_empty(self) -> bool:
        """Whether all clients have empty trees, as with methods that keep nothing."""
        return not self._fresh and not self._layout.segments and self._starts_empty

    @cached_property
    def _starts_empty(self) -> bool:
        """Whether an unvisited client has an empty tree. A method gives an initial state to all clients or to none."""
        return not self._create(0)

    def is_unvisited(self, client: int) -> bool:
        """Return whether nothing was ever stored for a client."""
        return client not in self._fresh and self._layout.place[client] == NOWHERE


def _to_merge(segments: list[Segment], live: list[Rows], num_fresh: int) -> set[int]:
    """Return the segments to merge into the next one, which also receives `num_fresh` new rows."""
    chosen = {k for k, segment in enumerate(segments) if 2 * segment.live_bytes(live[k]) < segment.num_bytes}
    while True:
        level = _level(num_fresh + sum(len(live[k]) for k in chosen))
        peers = {k for k in range(len(segments)) if k not in chosen and _level(len(live[k])) <= level}
        if len(peers) < FAN - 1:
            return chosen
        chosen |= peers


def _level(num_rows: int) -> int:
    """Return the logarithm to the base FAN, rounded down."""
    level = 0
    while num_rows >= FAN:
        num_rows //= FAN
        level += 1
    return level
