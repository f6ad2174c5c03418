"""Communities of one graph: V. D. Blondel, J.-L. Guillaume, R. Lambiotte, E. Lefebvre, "Fast unfolding of communities
in large networks", J. Stat. Mech. 2008.

For PubMed in FedDecay, with the "default data settings" of D. Chen et al., "pFL-Bench", NeurIPS 2022, whose code is
FederatedScope's. For N nodes, whatever they are for, and n clients:

    1.  find the communities by Louvain
    2.  shuffle and chop those of more than N/n - 20 nodes into equal pieces that are not larger
    3.  largest first, each piece goes to the client with the fewest nodes
    4.  a client with nothing to train on gets a training node of the client that has the most

Every node is dealt, in the split that it has. Edges from client to client are nobody's. The label set of a client is
that of all its nodes, as in `natural`, since it is the graph that decides who has what.

Step 4 is ours, and so is half of N/n in 2 where that is more than N/n - 20: for small clients. A piece is at most N/n,
so that there are pieces for all, and no client has more than N/n nodes and a piece.
"""

import heapq
import logging

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Assignment, Examples
from coterie.data.partition.dealing import check_size, rows_of, tally
from coterie.data.partition.partition import Partition
from coterie.errors import UserError
from coterie.settings import Count, settings

_ROOM = 20
"""What a piece leaves free of a client of average size."""

logger = logging.getLogger("coterie")


@settings
class Louvain(Partition):
    """Communities of a graph, packed into clients of similar size (FedDecay's PubMed)."""

    clients: Count = 5
    """Number of clients, new users among them."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        edges, num_train = examples.edges, len(examples.y_train)
        if edges is None:
            raise UserError(
                "partition.name = 'louvain' needs data that are one graph, and these have no edges; "
                "choose another partition (coterie partitions)"
            )
        trains = np.arange(num_train + len(examples.y_test)) < num_train
        if examples.validation is not None:
            trains[examples.validation] = False
        check_size(int(trains.sum()), self.clients, 1, "partition.clients")
        pieces = _chopped(_communities(len(trains), edges, rng), _bound(len(trains), self.clients), rng)
        client_of_node = _packed(pieces, self.clients)
        _feed(client_of_node, trains, self.clients)
        crossing = np.count_nonzero(np.diff(client_of_node[edges], axis=0))
        logger.info(f"{crossing // 2:,} of {edges.shape[1] // 2:,} edges are left out: they lead from client to client")
        *strata, num_strata = examples.strata()
        return Assignment(
            rows_of(client_of_node[:num_train], self.clients),
            rows_of(client_of_node[num_train:], self.clients),
            examples.label_sets(tally(client_of_node, np.concatenate(strata), self.clients, num_strata)),
            self.held_out(self.clients, rng),
        )


def _communities(num_nodes: int, edges: Index, rng: np.random.Generator) -> list[Index]:
    """Step 1: the sorted nodes of each."""
    try:
        import networkx
    except ImportError:
        raise UserError(
            "partition.name = 'louvain' needs networkx, which is not installed: pip install 'coterie[graphs]'"
        ) from None
    graph = networkx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(edges.T.tolist())
    found = networkx.community.louvain_communities(graph, seed=int(rng.integers(2**31)))
    return [np.array(sorted(community)) for community in found]


def _bound(num_nodes: int, clients: int) -> int:
    """The nodes of a piece."""
    return max(num_nodes // clients - _ROOM, num_nodes // (2 * clients), 1)


def _chopped(communities: list[Index], bound: int, rng: np.random.Generator) -> list[Index]:
    """Step 2."""
    pieces: list[Index] = []
    for nodes in communities:
        if (number := -(-len(nodes) // bound)) > 1:
            pieces += np.array_split(rng.permutation(nodes), number)
        else:
            pieces.append(nodes)
    return pieces


def _packed(pieces: list[Index], clients: int) -> Index:
    """Step 3: the client of each node."""
    client_of_node = np.empty(sum(map(len, pieces)), dtype=np.int64)
    fewest = [(0, client) for client in range(clients)]
    for piece in sorted(pieces, key=len, reverse=True):
        size, client = fewest[0]
        client_of_node[piece] = client
        heapq.heapreplace(fewest, (size + len(piece), client))
    return client_of_node


def _feed(client_of_node: Index, trains: NDArray[np.bool_], clients: int) -> None:
    """Step 4, in place."""
    own = rows_of(np.where(trains, client_of_node, -1), clients)
    hungry = [client for client, nodes in enumerate(own) if not len(nodes)]
    place = np.concatenate([np.arange(len(nodes)) for nodes in own])
    given = np.concatenate(own)[np.argsort(-place, kind="stable")[: len(hungry)]]
    client_of_node[given] = hungry
    if hungry:
        logger.info(f"{len(hungry):,} of {clients:,} clients had nothing to train on and were given a node of others'")
