"""Fixed train/test split for data published without one. Both sides have the same mix of strata."""

import numpy as np

from coterie.core.data import Index


def split(strata: Index, share: float) -> tuple[Index, Index]:
    """Return the training rows and the test rows, sorted. `share` of each stratum, rounded down, is for testing."""
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(strata))
    by_stratum = shuffled[np.argsort(strata[shuffled], kind="stable")]
    _, starts, counts = np.unique(strata[by_stratum], return_index=True, return_counts=True)
    place = np.arange(len(strata)) - np.repeat(starts, counts)
    tested = place < np.repeat((share * counts + 1e-9).astype(np.int64), counts)
    return np.sort(by_stratum[~tested]), np.sort(by_stratum[tested])
