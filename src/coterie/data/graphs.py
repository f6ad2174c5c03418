"""The parts of one graph that belong to each client."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.ragged import Ragged


class Graphs(NamedTuple):
    """Every client's part of a graph."""

    nodes: Ragged
    """Its nodes, of whatever split, sorted."""
    split: NDArray[np.str_]
    """Of each node of the whole graph."""
    kept: Ragged
    """Which edges have both ends among its nodes."""
    ends: Index
    """(2, E): every edge, each end as its place among the nodes of its client."""

    @classmethod
    def of(cls, edges: Index, splits: Mapping[str, Ragged], num_nodes: int) -> "Graphs":
        num_clients = len(splits["train"].offsets) - 1
        owner, split = np.full(num_nodes, -1), np.full(num_nodes, "", dtype="U10")
        for name, rows in splits.items():
            owner[rows.values] = np.repeat(np.arange(num_clients), rows.lengths())
            split[rows.values] = name
        nodes = Ragged.by_owner(owner, num_clients)
        place = np.zeros(num_nodes, dtype=np.int64)
        place[nodes.values] = np.arange(len(nodes.values)) - np.repeat(nodes.offsets[:-1], nodes.lengths())
        start, end = owner[edges]
        return cls(nodes, split, Ragged.by_owner(np.where(start == end, start, -1), num_clients), place[edges])

    def edges(self, i: int) -> Index:
        """(2, E_i): a client's edges, between places among its nodes."""
        return self.ends[:, self.kept.row(i)]
