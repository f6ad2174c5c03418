import gzip
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.examples import Examples
from coterie.data.sets import pubmed
from coterie.data.sets.pubmed import PubMed
from coterie.errors import UserError
from coterie.recipe import Recipe
from data.sets.published import need

# Fifteen nodes, the last three out of order. Node n has the feature n. One node cites itself; two edges are duplicates.
TEST_INDEX = [14, 12, 13]
CLASS_OF = np.arange(15) % 3
EDGES = {(0, 1), (1, 2), (0, 14), (3, 12), (12, 13), (4, 11)}
NEIGHBOURS = {0: [1, 14, 1], 1: [0, 2], 2: [2, 1], 3: [12], 4: [11, 11], 11: [4], 12: [13, 3], 13: [12], 14: [0]}


def fragment(value: Any) -> bytes:
    """Return a pickle without its start and end."""
    return pickle.dumps(value, 2)[2:-1]


def sparse(nodes: list[int], width: int = 500, **changes: Any) -> bytes:
    """Write a csr_matrix as Python 2 and an old scipy do."""
    state = {
        "_shape": (len(nodes), width),
        "data": np.array(nodes, np.float32) + 1,
        "indices": np.array(nodes, np.int32),
        "indptr": np.arange(len(nodes) + 1, dtype=np.int32),
    } | changes
    return b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81" + fragment(state) + b"b."


def graph(neighbours: dict[int, list[int]]) -> bytes:
    entries = (fragment(node) + fragment(others) + b"s" for node, others in neighbours.items())
    return b"\x80\x02ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R" + b"".join(entries) + b"."


def write(folder: Path, **changes: bytes) -> None:
    one_hot = np.eye(3, dtype=np.int32)[CLASS_OF]
    files = {
        "allx": sparse([*range(12)]),
        "tx": sparse(TEST_INDEX),
        "ally": pickle.dumps(one_hot[:12], 2),
        "ty": pickle.dumps(one_hot[TEST_INDEX], 2),
        "graph": graph({node: NEIGHBOURS.get(node, []) for node in range(15)}),
        "index": "\n".join(map(str, TEST_INDEX)).encode(),
    } | changes
    for name, content in files.items():
        (folder / f"ind.pubmed.{'test.index' if name == 'index' else name}").write_bytes(content)


def load(folder: Path, **changes: Any) -> Examples:
    return PubMed(path=str(folder), **changes).load()


def test_nodes_get_their_own_features_classes_and_neighbours(tmp_path: Path) -> None:
    write(tmp_path)
    data = load(tmp_path)
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    assert (x.shape, x.dtype) == ((15, 500), np.float32)
    node = x.argmax(axis=1)
    assert sorted(node) == list(range(15))
    assert (x[np.arange(15), node] == node + 1).all()
    assert (np.count_nonzero(x, axis=1) == 1).all()
    assert (y == CLASS_OF[node]).all()
    assert data.edges is not None
    assert sorted(map(tuple, node[data.edges].T)) == sorted(EDGES | {(end, start) for start, end in EDGES})


def test_a_fifth_of_all_from_each_class_to_train_and_a_fifth_to_validate(tmp_path: Path) -> None:
    write(tmp_path)
    data = load(tmp_path)
    assert data.validation is not None
    assert np.bincount(np.delete(data.y_train, data.validation)).tolist() == [3, 3, 3]
    assert (len(set(data.validation)), len(data.y_train), len(data.y_test)) == (3, 12, 3)


def test_the_seed_decides_the_split(tmp_path: Path) -> None:
    write(tmp_path)
    one, same, other = (load(tmp_path, seed=seed) for seed in (1, 1, 2))
    assert all(map(np.array_equal, one[:4], same[:4]))
    assert not np.array_equal(one.x_test, other.x_test)


class Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("name", ["allx", "tx", "ally", "ty", "graph"])
def test_a_malicious_file_is_refused_and_runs_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path, **{name: pickle.dumps(Touch(tmp_path / "trace"), 2)})
    with pytest.raises(UserError, match=rf"ind\.pubmed\.{name} is refused: it asks for \w+\.system"):
        load(tmp_path)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"allx": sparse([*range(12)], 400)}, r"allx is damaged: its shape is not \(12, 500\)"),
        ({"tx": sparse(TEST_INDEX, indices=np.array([1, 2, 500]))}, r"tx is damaged: it has a column outside 0\.\.499"),
        ({"tx": sparse(TEST_INDEX, indices=np.array([1, 2, -1]))}, r"tx is damaged: it has a column outside 0\.\.499"),
        (
            {"tx": sparse(TEST_INDEX, indptr=np.array([0, 3, 3, 3]), indices=np.array([1, 2, 1]))},
            "tx is damaged: an entry of its sparse matrix appears twice",
        ),
        ({"tx": sparse(TEST_INDEX, indptr=np.array([0, 3, 1, 3]))}, "tx is damaged: the rows of its sparse matrix are"),
        ({"tx": pickle.dumps([1, 2], 2)}, "tx is damaged: it is not a sparse matrix"),
        ({"ally": pickle.dumps(np.eye(3)[[0, 1]], 2)}, "ally is damaged: it is not 12 rows"),
        ({"ty": pickle.dumps(np.ones((3, 3)), 2)}, "ty is damaged: it is not 3 rows of one-hot classes"),
        ({"ally": pickle.dumps(np.eye(3)[[0, 1] * 6], 2)}, "a class has 1 nodes, fewer than the 3 needed for training"),
        ({"index": b"12\n13\n13"}, r"test\.index is damaged: its 3 nodes are not 12 to 14, each once"),
        ({"index": b"12\nx\n13"}, r"test\.index is damaged: it is not a list of nodes"),
        ({"graph": graph({0: [15]})}, r"graph is damaged: a node is outside 0\.\.14"),
        ({"graph": graph({-1: [0]})}, r"graph is damaged: a node is outside 0\.\.14"),
        ({"graph": graph({0: ["a"]})}, r"graph is damaged: a node is outside 0\.\.14"),
        ({"graph": pickle.dumps([1], 2)}, "graph is damaged: it is not a dict of neighbours"),
        ({"graph": graph({})}, "graph is damaged: it is not a dict of neighbours"),
    ],
)
def test_damage_is_told(tmp_path: Path, changes: dict[str, bytes], message: str) -> None:
    write(tmp_path, **changes)
    with pytest.raises(UserError, match=message):
        load(tmp_path)


def test_a_recipe_that_names_nothing_else() -> None:
    assert (PubMed.usual_partition, PubMed.usual_model) == ("louvain", "gin")
    recipe = Recipe.parse({"data": {"name": "pubmed"}})
    assert [type(part).__name__ for part in (recipe.partition, recipe.model)] == ["Louvain", "GIN"]


def test_the_checksums_are_those_of_the_files() -> None:
    need("pubmed")
    for file, path in zip(pubmed._FILES, PubMed().files(), strict=True):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert file.checksum == f"md5:{hashlib.md5(content).hexdigest()}"


def test_published_facts() -> None:
    need("pubmed")
    data = PubMed().load()
    x, y, edges = np.concatenate([data.x_train, data.x_test]), np.append(data.y_train, data.y_test), data.edges
    assert x.shape == (19717, 500)
    assert np.bincount(y).tolist() == [4103, 7739, 7875]
    assert data.validation is not None
    assert edges is not None
    assert np.bincount(np.delete(data.y_train, data.validation)).tolist() == [3943] * 3
    assert (len(data.validation), len(data.y_test)) == (3943, 3945)
    assert edges.shape == (2, 2 * 44324)
    degrees = np.bincount(edges[0], minlength=len(y))
    assert (degrees.min(), degrees.max(), round(degrees.mean(), 3)) == (1, 171, 4.496)
    assert len(np.unique(edges, axis=1).T) == edges.shape[1]
    assert set(map(tuple, edges.T)) == set(map(tuple, edges[::-1].T))
    assert (edges[0] != edges[1]).all()
    assert round((y[edges[0]] == y[edges[1]]).mean(), 2) == 0.80  # it would be far lower if rows were out of order
    assert np.count_nonzero(x) == 988_031
