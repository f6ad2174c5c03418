"""PubMed: papers on diabetes and their citations. G. Namata, B. London, L. Getoor, B. Huang, "Query-driven Active
Surveying for Collective Classification", MLG 2012.

The files are from Planetoid (Z. Yang, W. W. Cohen, R. Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph
Embeddings", ICML 2016). `allx` and `ally` describe the first nodes, and row i of `tx` and `ty` describes node
`test.index`[i]. The neighbour lists have 88,676 entries, which are the 44,338 edges reported in the literature. Of
these, 3 are citations of a node by itself and 11 are duplicates. They are removed, which leaves 44,324 edges.

The split follows FedDecay, which uses FederatedScope's: 3,943 random nodes of each class for training, 3,943 of the
remaining nodes for validation, and the last 3,945 for testing. Classes are therefore equally frequent only in training.
The authors' random draw is PyTorch's and is not reproduced here.
"""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Examples
from coterie.data.files import limits, pickles
from coterie.data.files.fetch import File
from coterie.data.files.locate import locate
from coterie.data.files.unpack import content, damaged
from coterie.data.sets.dataset import Dataset
from coterie.settings import Size, settings

_FOLDER = "https://raw.githubusercontent.com/kimiyoung/planetoid/master/data"
_FILES = tuple(
    File(f"ind.pubmed.{name}", (f"{_FOLDER}/ind.pubmed.{name}",), f"md5:{checksum}")
    for name, checksum in (
        ("allx", "d6ecf5ffbdc9f8b181962d6829c7a8ac"),
        ("tx", "30d5abd15cf10e46ebd9514b256e0347"),
        ("ally", "ab5def164b4c5b33e215b6397a84ee4b"),
        ("ty", "3082e367753e3a81c457f644316ca17d"),
        ("graph", "601ee2ffa59197989ff7267383a4ea46"),
        ("test.index", "57cdfacfa20179b9b92e077fba394d1c"),
    )
)
_FEATURES, _CLASSES = 500, 3

Features = NDArray[np.float32]


@settings
class PubMed(Dataset):
    """Graph of 19,717 papers on diabetes and 44,324 citations, 500 TF-IDF features, 3 classes; 60 % for training."""

    usual_partition: ClassVar[str] = "louvain"
    usual_model: ClassVar[str] = "gin"

    path: str | None = None
    """Folder with Planetoid's ind.pubmed.* files. Default: search $COTERIE_DATA/pubmed and the user's cache, then
    download."""
    seed: Size = 12345
    """Seed of the random split into training, validation and test nodes."""

    def files(self) -> list[Path]:
        return locate("pubmed", _FILES, "https://github.com/kimiyoung/planetoid", self.path)

    def load(self) -> Examples:
        allx, tx, ally, ty, graph, test_index = self.files()
        place = _places(test_index, len(first := _features(allx)), len(last := _features(tx)))
        x = np.concatenate([first, last])[place]
        y = np.concatenate([_classes(ally, len(first)), _classes(ty, len(last))])[place]
        train, validation, test = self._split(y, ally)
        kept, row_of_node = np.sort(np.append(train, validation)), np.empty_like(y)
        row_of_node[np.append(kept, test)] = np.arange(len(y))
        return Examples(
            x[kept],
            y[kept],
            x[test],
            y[test],
            labels=tuple(range(_CLASSES)),
            validation=row_of_node[validation],
            edges=row_of_node[_edges(graph, len(y))],
        )

    def _split(self, y: Index, path: Path) -> tuple[Index, Index, Index]:
        """Draw the training, validation and test nodes, each sorted."""
        rng, share = np.random.default_rng(self.seed), len(y) // 5
        if (least := np.bincount(y, minlength=_CLASSES).min()) < share:
            raise damaged(path, f"a class has {least} nodes, fewer than the {share} needed for training")
        of_class = [rng.permutation(np.flatnonzero(y == label)) for label in range(_CLASSES)]
        rest = rng.permutation(np.concatenate([nodes[share:] for nodes in of_class]))
        train = np.concatenate([nodes[:share] for nodes in of_class])
        return np.sort(train), np.sort(rest[:share]), np.sort(rest[share:])


class _Sparse(pickles.Record):
    """Replacement for scipy's csr_matrix that only holds its arrays."""


_MORE: pickles.Names = {
    ("scipy.sparse.csr", "csr_matrix"): _Sparse,
    # The graph is a defaultdict(list). A plain dict is enough, because the file provides all entries.
    ("collections", "defaultdict"): lambda _: {},
    ("__builtin__", "list"): lambda: [],
}


def _features(path: Path) -> Features:
    matrix = pickles.load(path, _MORE)
    parts: list[Any] = [getattr(matrix, name, None) for name in ("indptr", "indices", "data")]
    if not all(isinstance(part, np.ndarray) and part.ndim == 1 for part in parts):
        raise damaged(path, "it is not a sparse matrix")
    starts, columns, values = parts
    lengths = np.diff(starts) if starts.dtype.kind == columns.dtype.kind == "i" else np.array([-1])
    if len(columns) != len(values) or lengths.min(initial=0) < 0 or [*starts[:1], *starts[-1:]] != [0, len(columns)]:
        raise damaged(path, "the rows of its sparse matrix are invalid")
    if columns.min(initial=0) < 0 or columns.max(initial=0) >= _FEATURES:
        raise damaged(path, f"it has a column outside 0..{_FEATURES - 1}")
    limits.check(4 * _FEATURES * len(lengths), f"a matrix of {len(lengths):,} rows", path)
    cells = np.repeat(np.arange(len(lengths)), lengths) * _FEATURES + columns
    if len(np.unique(cells)) < len(cells):
        raise damaged(path, "an entry of its sparse matrix appears twice")
    x = np.zeros((len(lengths), _FEATURES), dtype=np.float32)
    x.ravel()[cells] = values
    if getattr(matrix, "_shape", None) != x.shape:
        raise damaged(path, f"its shape is not {x.shape}")
    return x


def _classes(path: Path, num_rows: int) -> Index:
    one_hot = pickles.load(path, _MORE)
    is_right = isinstance(one_hot, np.ndarray) and one_hot.shape == (num_rows, _CLASSES)
    if not is_right or not np.array_equal(np.sort(one_hot), [[0, 0, 1]] * num_rows):
        raise damaged(path, f"it is not {num_rows} rows of one-hot classes")
    classes: Index = one_hot.argmax(axis=1)
    return classes


def _places(path: Path, num_first: int, num_last: int) -> Index:
    """Return the row of each node among the rows of allx and tx."""
    try:
        nodes = np.array(content(path, cost=24).split(), dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise damaged(path, f"it is not a list of nodes ({error})") from error
    if not np.array_equal(np.sort(nodes), np.arange(num_first, num_first + num_last)):
        raise damaged(path, f"its {len(nodes)} nodes are not {num_first} to {num_first + num_last - 1}, each once")
    return np.append(np.arange(num_first), num_first + np.argsort(nodes))


def _edges(path: Path, num_nodes: int) -> Index:
    """Read the edges between different nodes, both directions of each, without duplicates."""
    neighbours = pickles.load(path, _MORE)
    lists: list[Any] = list(neighbours.values()) if isinstance(neighbours, dict) else [None]
    if not lists or not all(isinstance(others, list) for others in lists) or len({*map(id, lists)}) < len(lists):
        raise damaged(path, "it is not a dict of neighbours")
    flat = [*neighbours, *(other for others in lists for other in others)]
    if not all(type(node) is int and 0 <= node < num_nodes for node in flat):
        raise damaged(path, f"a node is outside 0..{num_nodes - 1}")
    start = np.repeat(np.array(flat[: len(lists)], np.int64), np.array([len(others) for others in lists], np.int64))
    pairs = np.stack([start, np.array(flat[len(lists) :], np.int64)])
    pairs = pairs[:, start != pairs[1]]
    return np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
