"""Parts of one graph that belong to the clients."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.ragged import Ragged


class Graphs(NamedTuple):
    """The part of a graph that each client holds."""

    nodes: Ragged
    """Nodes of each client from all splits, sorted."""
    split: NDArray[np.str_]
    """Split that each node of the whole graph belongs to."""
    kept: Ragged
    """Edges of each client: those with both ends among its nodes."""
    ends: Index
    """(2, E): all edges. Each end is given as its position among the nodes of its client."""

    @classmethod
    def of(cls, edges: Index, splits: Mapping[str, Ragged], num_nodes: int) -> "Graphs":
        """Find the nodes and edges of each client."""
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
        """Return the edges (2, E_i) of client i, between positions among its nodes."""
        return self.ends[:, self.kept.row(i)]
