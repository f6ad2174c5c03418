"""Clients that hold nodes of one graph as examples."""

import numpy as np
import pytest
import torch

from coterie import train
from coterie.core.data import Graph
from coterie.data.examples import Assignment, Examples
from coterie.data.federation import Federation
from coterie.errors import UserError


def federation() -> Federation:
    """Nodes 0..5 are for training, 6 and 7 for testing; a ring of all eight, and one chord."""
    ring = np.array([[i, (i + 1) % 8] for i in range(8)] + [[0, 6]]).T
    edges = np.concatenate([ring, ring[::-1]], axis=1)
    x = np.arange(8, dtype=np.float32)[:, None]
    y = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    examples = Examples(x[:6], y[:6], x[6:], y[6:], ("a", "b", "c"), edges=edges)
    rows = [np.array(each) for each in ([0, 1], [2, 4])]
    kept = [np.array(each) for each in ([5], [3])]
    tested = [np.array(each) for each in ([0], [1])]
    classes = [np.array([0, 1, 2]), np.array([0, 1, 2])]
    return Federation.assemble(examples, Assignment(rows, tested, classes, np.zeros(2, bool), ("p", "q"), kept))


def named(graph: Graph) -> set[tuple[int, int]]:
    """Return edges by node numbers in the whole graph, which are also the features of the nodes."""
    nodes = graph.nodes[:, 0].int()
    return {(int(nodes[a]), int(nodes[b])) for a, b in graph.edges.T.tolist()}


def test_a_client_has_all_its_nodes_and_the_edges_among_them():
    graph = federation().data(0, "train", "global").x
    assert graph.nodes[:, 0].tolist() == [0, 1, 5, 6]
    assert named(graph) == {(0, 1), (1, 0), (5, 6), (6, 5), (0, 6), (6, 0)}
    other = federation().data(1, "train", "global").x
    assert other.nodes[:, 0].tolist() == [2, 3, 4, 7]
    assert named(other) == {(2, 3), (3, 2), (3, 4), (4, 3)}


@pytest.mark.parametrize(
    ("split", "mask"),
    [
        ("train", [True, True, False, False]),
        ("validation", [False, False, True, False]),
        ("test", [False] * 3 + [True]),
    ],
)
def test_the_mask_says_which_nodes_count(split, mask):
    clients = federation()
    data = clients.data(0, split, "global")
    assert data.mask.tolist() == mask
    assert data.y.tolist() == [0, 1, 2, 0]
    assert clients.sizes(split)[0] == sum(mask)


def test_edges_are_part_of_the_fingerprint():
    clients = federation()
    fewer = Federation(**{**vars(clients), "edges": clients.edges[:, 1:]})
    assert clients.fingerprint() != fewer.fingerprint()


def test_nodes_follow_the_type_of_the_run():
    graph = federation().to(torch.float64, torch.device("cpu")).data(0, "train", "global").x
    assert graph.nodes.dtype == torch.float64
    assert graph.edges.dtype == torch.int64


def test_a_new_client_without_edges_is_refused():
    run = train(federation(), model="gin", rounds=1)
    with pytest.raises(UserError, match="needs its edges"):
        run.personalize([[0.0] * federation().x.shape[1]], [0])
