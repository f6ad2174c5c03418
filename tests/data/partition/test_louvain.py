import itertools
import logging
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.federation import Federation
from coterie.data.partition import louvain
from coterie.data.partition.louvain import Louvain
from coterie.data.sets.pubmed import PubMed
from coterie.errors import UserError
from data.sets.published import need
from partitions import labelled


def assign(examples, clients, seed=0, **options):
    return Louvain(clients=clients, new_users=0.0, **options).assign(examples, np.random.default_rng(seed))


def both(pairs):
    """Return edges (2, E), each pair in both directions."""
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return np.concatenate([edges, edges[::-1]], axis=1)


def cliques(sizes, more=(), num_test=0):
    """Return complete graphs of the given sizes, each with its own class. The last nodes are for testing."""
    of_node = np.repeat(np.arange(len(sizes)), sizes)
    pairs = [pair for own in range(len(sizes)) for pair in itertools.combinations(np.flatnonzero(of_node == own), 2)]
    cut = len(of_node) - num_test
    examples = labelled(of_node[:cut], of_node[cut:], len(sizes))
    return examples._replace(edges=both([*pairs, *more]))


def random_graph(num_train, num_test, num_edges, num_validation=0, seed=0):
    rng = np.random.default_rng(seed)
    number = num_train + num_test
    examples = labelled(rng.integers(4, size=num_train), rng.integers(4, size=num_test), 4)
    validation = rng.choice(num_train, num_validation, replace=False) if num_validation else None
    return examples._replace(edges=both(rng.integers(number, size=(num_edges, 2))), validation=validation)


def nodes_of(examples, result, i):
    parts = [result.train[i], result.test[i] + len(examples.y_train)]
    return np.concatenate([*parts, *([result.validation[i]] if len(result.validation) else [])])


def test_communities_are_kept_together(caplog):
    examples = cliques([30, 25, 20, 15, 10], more=[(0, 99), (0, 98), (30, 60)])
    with caplog.at_level(logging.INFO, "coterie"):
        result = assign(examples, 2)
    # 30 and 25, then 25 + 20, then 30 + 15; both have 45, so the first gets the last
    assert [own.tolist() for own in result.classes] == [[0, 3, 4], [1, 2]]
    assert list(map(len, result.train)) == [55, 45]
    assert "0 of 1,078 edges are omitted" in caplog.text


def test_edges_between_clients_are_counted_and_are_those_that_a_federation_drops(caplog):
    examples = cliques([30, 25, 20, 15, 10], more=[(0, 30), (1, 31), (2, 60)], num_test=12)
    with caplog.at_level(logging.INFO, "coterie"):
        result = assign(examples, 2)
    assert "3 of 1,078 edges are omitted, because they connect two clients" in caplog.text
    federation = Federation.assemble(examples, result)
    graphs = [federation.data(i, "train", "global").x for i in range(2)]
    assert [len(graph.nodes) for graph in graphs] == [55, 45]
    assert sum(graph.edges.shape[1] for graph in graphs) == 2 * (1078 - 3)


@pytest.mark.parametrize(
    ("sizes", "clients", "pieces"),
    [
        ([100], 2, [25, 25, 25, 25]),  # at most 100/2 - 20 = 30
        ([61, 39], 2, [21, 20, 20, 20, 19]),
        ([30, 70], 1, [70, 30]),
        ([12], 4, [1] * 12),  # 12/4 - 20 is negative; half of 3
        ([60], 3, [10] * 6),
        ([80], 2, [20] * 4),
    ],
)
def test_large_communities_are_chopped(monkeypatch, sizes, clients, pieces):
    seen = []
    packed = louvain._packed
    monkeypatch.setattr(louvain, "_packed", lambda each, number: seen.extend(map(len, each)) or packed(each, number))
    assign(cliques(sizes), clients)
    assert sorted(seen, reverse=True) == pieces


def test_a_chopped_community_is_shuffled():
    """Training nodes come first; otherwise some pieces would contain test nodes only."""
    result = assign(cliques([160], num_test=80), 2)
    for train, test in zip(result.train, result.test, strict=True):
        assert 0.5 < len(train) / len(test) < 2


def test_a_client_with_nothing_to_train_on_gets_a_node(caplog):
    examples = cliques([30, 25, 20, 15, 10])._replace(validation=np.arange(30, 75))
    with caplog.at_level(logging.INFO, "coterie"):
        result = assign(examples, 2)
    assert [len(rows) for rows in result.train] == [54, 1]
    assert [own.tolist() for own in result.classes] == [[0, 3, 4], [1, 2, 4]]
    assert "1 of 2 clients had no training nodes and received one from another client" in caplog.text


def test_who_has_most_gives_first():
    client_of_node = np.array([0, 0, 0, 0, 1, 1, 1, 2, 3])
    louvain._feed(client_of_node, np.arange(9) < 7, 4)
    assert client_of_node.tolist() == [0, 0, 3, 2, 1, 1, 1, 2, 3]


@st.composite
def graphs(draw):
    clients = draw(st.integers(1, 200))
    num_train = clients + draw(st.integers(0, 300))
    return {
        "num_train": num_train,
        "num_test": draw(st.integers(0, 200)),
        "num_edges": draw(st.integers(0, 400)),
        "num_validation": draw(st.integers(0, num_train - clients)),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }, clients


@settings(deadline=None, max_examples=60)
@given(case=graphs())
def test_properties(case):
    options, clients = case
    examples = random_graph(**options)
    result = assign(examples, clients, seed=options["seed"])
    number = options["num_train"] + options["num_test"]
    owned = [nodes_of(examples, result, i) for i in range(clients)]
    np.testing.assert_array_equal(np.sort(np.concatenate(owned)), range(number))
    assert all(map(len, result.train))
    mean = number / clients
    piece = max(mean - 20, mean / 2, 1)
    assert max(map(len, owned)) <= mean + piece + 1  # and the node from step 4
    y = np.append(examples.y_train, examples.y_test)
    for nodes, own in zip(owned, result.classes, strict=True):
        np.testing.assert_array_equal(own, np.unique(y[nodes]))
    again = assign(examples, clients, seed=options["seed"])
    for one, other in zip(result[:3], again[:3], strict=True):
        assert all(map(np.array_equal, one, other))


def test_another_seed_gives_other_clients():
    examples = random_graph(300, 100, 500)
    one, other = (assign(examples, 5, seed) for seed in (0, 1))
    assert not all(map(np.array_equal, one.train, other.train))


def test_nodes_may_have_numbers_instead_of_classes():
    examples = random_graph(60, 20, 100)
    numbers = examples._replace(y_train=np.linspace(0, 1, 60), y_test=np.linspace(0, 1, 20), labels=())
    result = assign(numbers, 3)
    assert [len(own) for own in result.classes] == [0, 0, 0]
    assert all(map(np.array_equal, result.train, assign(examples, 3).train))


def test_new_users_and_validation_come_with_it():
    result = Louvain(clients=10, new_users=0.2, validation=0.5).assign(
        random_graph(300, 100, 500), np.random.default_rng(0)
    )
    assert result.is_new.sum() == 2
    assert all(map(len, result.validation))


def test_data_without_edges_are_refused():
    with pytest.raises(UserError, match=r"partition\.name = 'louvain' needs data that form a graph"):
        assign(labelled(np.zeros(9, np.int64), np.zeros(3, np.int64), 1), 2)


def test_too_many_clients_name_the_key():
    with pytest.raises(UserError, match=r"6 clients .* the data set has 5; lower partition\.clients"):
        assign(random_graph(9, 30, 20, num_validation=4), 6)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(UserError, match=r"pip install 'coterie\[graphs\]'"):
        assign(random_graph(9, 3, 20), 2)


def test_pubmed(caplog):
    need("pubmed")
    examples = PubMed().load()
    with caplog.at_level(logging.INFO, "coterie"):
        result = assign(examples, 5)
    sizes = [len(nodes_of(examples, result, i)) for i in range(5)]
    assert sum(sizes) == 19717
    assert max(sizes) - min(sizes) < 50
    found = re.search(r"([\d,]+) of 44,324 edges are omitted", caplog.text)
    assert found is not None
    assert int(found[1].replace(",", "")) < 0.15 * 44324  # for a random partition it would be 0.8
