"""Random test and validation splits for clients that provide none, drawn class by class."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index


def split(y: NDArray[np.generic], shares: Mapping[str, float], rng: np.random.Generator) -> dict[str, Index]:
    """Draw the rows of each split. All other rows are "train", which keeps at least one row of each class.

    Each class contributes its share to within one example. The total matches the share of all rows if that is
    possible. A split does not depend on the shares that come after it.
    """
    _, kind, count = np.unique(y, return_inverse=True, return_counts=True)
    shuffled = rng.permutation(len(y))
    queues = np.split(shuffled[np.argsort(kind[shuffled], kind="stable")], np.cumsum(count)[:-1])
    rows = {}
    for name, share in shares.items():
        take = _allot(share, count, np.array([len(queue) for queue in queues]) - 1, rng)
        rows[name] = np.sort(np.concatenate([queue[:n] for queue, n in zip(queues, take, strict=True)]))
        queues = [queue[n:] for queue, n in zip(queues, take, strict=True)]
    return {**rows, "train": np.sort(np.concatenate(queues))}


def _allot(share: float, count: Index, most: Index, rng: np.random.Generator) -> Index:
    """Return how many rows of each class to draw, at most `most`.

    Each class gets its share rounded down. The classes that lose most by rounding then get one more, until the total is
    right.
    """
    exact = share * count
    take: Index = np.minimum(np.floor(exact + 1e-9).astype(np.int64), most)
    missing = int(share * count.sum() + 0.5 + 1e-9) - take.sum()
    order = np.lexsort((rng.random(len(count)), take - exact))
    room = order[(take < most)[order] & (exact > take + 1e-9)[order]]
    take[room[: max(missing, 0)]] += 1
    return take
