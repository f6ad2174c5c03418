"""What clients keep between their visits: in memory until a checkpoint, in the checkpoint's segments from then on.

A million clients take some megabytes: two small integers each say where the newest state lies. A checkpoint writes what
was put since the one before, as one new segment, and nothing else, but for two chores that keep the disk in order:

- a segment of which less than half is still the newest is written anew, so that the disk holds at most twice what is
  alive; each byte so copied is paid for by one that died;
- where FAN segments have come to be of about the same size they become one, so that there are few; a state is copied
  so once for each power of FAN.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.core.tree import Tree
from coterie.storage.segments import Rows, Segment, fresh_blocks, write_segment

FAN = 16
NOWHERE = -1


class Layout(NamedTuple):
    """Where the newest state of each client lies on the disk."""

    segments: list[Segment]
    place: NDArray[np.int16]
    """Of the segment, for each client."""
    row: NDArray[np.int32]
    """Within the segment, for each client."""

    @classmethod
    def empty(cls, num_clients: int) -> "Layout":
        return cls([], np.full(num_clients, NOWHERE, np.int16), np.zeros(num_clients, np.int32))

    def append(self, segment: Segment) -> None:
        """Its rows are newer than all others."""
        clients = segment.clients()
        self.place[clients] = len(self.segments)
        self.row[clients] = np.arange(len(clients))
        self.segments.append(segment)


class PersonalStore:
    """A client that was never visited has what `create` gives, and takes no room.

    Trees are copied on their way in and out, so that it makes no difference whether a state is on the disk yet.
    """

    def __init__(self, create: Callable[[int], Tree], num_clients: int, device: torch.device) -> None:
        self._create = create
        self._device = device
        self._fresh: dict[int, Tree] = {}
        """What was put since the last checkpoint, on the CPU."""
        self._layout = Layout.empty(num_clients)

    def __getitem__(self, client: int) -> Tree:
        if client in self._fresh:
            return {name: value.to(self._device, copy=True) for name, value in self._fresh[client].items()}
        segments, place, row = self._layout
        if place[client] == NOWHERE:
            return {} if self._starts_empty else self._create(client)
        return {name: value.to(self._device) for name, value in segments[place[client]][int(row[client])].items()}

    def __setitem__(self, client: int, personal: Tree) -> None:
        if not personal and self.is_unvisited(client) and self._starts_empty:
            return
        self._fresh[client] = {
            name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in personal.items()
        }

    def write(self, folder: Path) -> Layout:
        """Put on the disk what is only in memory. The store goes on as before until it `adopt`s the result."""
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
        """From now on what is on the disk is read from there."""
        self._layout = layout
        self._fresh = {}

    def restore(self, segments: list[Segment]) -> None:
        """Be as the store that wrote a checkpoint of these segments."""
        layout = Layout.empty(len(self._layout.place))
        for segment in segments:
            layout.append(segment)
        self.adopt(layout)

    @cached_property
    def _starts_empty(self) -> bool:
        """Whether a client of which nothing is kept has an empty tree: a method gives something to all, or to none."""
        return not self._create(0)

    def is_unvisited(self, client: int) -> bool:
        """Return whether nothing was ever stored for a client."""
        return client not in self._fresh and self._layout.place[client] == NOWHERE


def _to_merge(segments: list[Segment], live: list[Rows], num_fresh: int) -> set[int]:
    """Which segments are to go into the next one, next to `num_fresh` new rows."""
    chosen = {k for k, segment in enumerate(segments) if 2 * segment.live_bytes(live[k]) < segment.num_bytes}
    while True:
        level = _level(num_fresh + sum(len(live[k]) for k in chosen))
        peers = {k for k in range(len(segments)) if k not in chosen and _level(len(live[k])) <= level}
        if len(peers) < FAN - 1:
            return chosen
        chosen |= peers


def _level(num_rows: int) -> int:
    """The logarithm to the base FAN, rounded down."""
    level = 0
    while num_rows >= FAN:
        num_rows //= FAN
        level += 1
    return level
