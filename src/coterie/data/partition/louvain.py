"""Partition of a graph into communities: V. D. Blondel, J.-L. Guillaume, R. Lambiotte, E. Lefebvre, "Fast unfolding of
communities in large networks", J. Stat. Mech. 2008.

FedDecay uses it for PubMed, with the "default data settings" of D. Chen et al., "pFL-Bench", NeurIPS 2022, which is
implemented in FederatedScope. For N nodes of all splits and n clients:

    1.  find the communities with the Louvain method
    2.  shuffle each community of more than N/n - 20 nodes and cut it into equal pieces of at most this size
    3.  starting with the largest piece, give each piece to the client with the fewest nodes
    4.  a client without training nodes gets one from the client that has the most

Every node is assigned to a client and keeps its split. Edges between clients are dropped. The label set of a client
covers all its nodes, as in `natural`, because the graph decides which client has which classes.

Step 4 is ours. So is the bound in step 2 for small clients: half of N/n if that is more than N/n - 20. A piece has at
most N/n nodes. So there are pieces for all clients, and no client has more nodes than N/n plus one piece.
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
"""Number of nodes by which a piece is smaller than a client of average size."""

logger = logging.getLogger("coterie")


@settings
class Louvain(Partition):
    """Communities of a graph, combined into clients of similar size (FedDecay's PubMed)."""

    clients: Count = 5
    """Number of clients, including new users."""

    def deal(self, examples: Examples, rng: np.random.Generator) -> Assignment:
        edges, num_train = examples.edges, len(examples.y_train)
        if edges is None:
            raise UserError(
                "partition.name = 'louvain' needs data that form a graph, but these data have no edges; "
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
        logger.info(f"{crossing // 2:,} of {edges.shape[1] // 2:,} edges are omitted, because they connect two clients")
        *strata, num_strata = examples.strata()
        return Assignment(
            rows_of(client_of_node[:num_train], self.clients),
            rows_of(client_of_node[num_train:], self.clients),
            examples.label_sets(tally(client_of_node, np.concatenate(strata), self.clients, num_strata)),
            self.held_out(self.clients, rng),
        )


def _communities(num_nodes: int, edges: Index, rng: np.random.Generator) -> list[Index]:
    """Do step 1. Return the sorted nodes of each community."""
    try:
        import networkx
    except ImportError:
        raise UserError("partition.name = 'louvain' needs networkx: pip install 'coterie[graphs]'") from None
    graph = networkx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(edges.T.tolist())
    found = networkx.community.louvain_communities(graph, seed=int(rng.integers(2**31)))
    return [np.array(sorted(community)) for community in found]


def _bound(num_nodes: int, clients: int) -> int:
    """Return the maximum number of nodes of a piece."""
    return max(num_nodes // clients - _ROOM, num_nodes // (2 * clients), 1)


def _chopped(communities: list[Index], bound: int, rng: np.random.Generator) -> list[Index]:
    """Do step 2. Return the nodes of each piece."""
    pieces: list[Index] = []
    for nodes in communities:
        if (number := -(-len(nodes) // bound)) > 1:
            pieces += np.array_split(rng.permutation(nodes), number)
        else:
            pieces.append(nodes)
    return pieces


def _packed(pieces: list[Index], clients: int) -> Index:
    """Do step 3. Return the client of each node."""
    client_of_node = np.empty(sum(map(len, pieces)), dtype=np.int64)
    fewest = [(0, client) for client in range(clients)]
    for piece in sorted(pieces, key=len, reverse=True):
        size, client = fewest[0]
        client_of_node[piece] = client
        heapq.heapreplace(fewest, (size + len(piece), client))
    return client_of_node


def _feed(client_of_node: Index, trains: NDArray[np.bool_], clients: int) -> None:
    """Do step 4, in place: give each client at least one training node."""
    own = rows_of(np.where(trains, client_of_node, -1), clients)
    hungry = [client for client, nodes in enumerate(own) if not len(nodes)]
    place = np.concatenate([np.arange(len(nodes)) for nodes in own])
    given = np.concatenate(own)[np.argsort(-place, kind="stable")[: len(hungry)]]
    client_of_node[given] = hungry
    if hungry:
        logger.info(
            f"{len(hungry):,} of {clients:,} clients had no training nodes and received one from another client"
        )
