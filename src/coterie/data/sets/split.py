"""A split of our own, for what is published without one: always the same, and with the same mix on both sides."""

import numpy as np

from coterie.core.data import Index


def split(strata: Index, share: float) -> tuple[Index, Index]:
    """Rows to train on and rows to test on, sorted; of each stratum that share is tested on, rounded down."""
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(strata))
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    _, starts, counts = np.unique(strata[by_stratum], return_index=True, return_counts=True)
    place = np.arange(len(strata)) - np.repeat(starts, counts)
    tested = place < np.repeat((share * counts + 1e-9).astype(np.int64), counts)
    return np.sort(by_stratum[~tested]), np.sort(by_stratum[tested])
