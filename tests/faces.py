"""Quadratic programmes on the simplex, solved by a search through all of its faces."""

from itertools import combinations

import numpy as np


def brute_force(P: np.ndarray) -> np.ndarray:
    """Return the best of the minimizers on all faces, each from its stationarity conditions."""
    r, best, least = len(P), np.full(len(P), np.nan), np.inf
    for face in (list(face) for size in range(1, r + 1) for face in combinations(range(r), size)):
        system = np.block(
            [[P[np.ix_(face, face)], np.ones((len(face), 1))], [np.ones((1, len(face))), np.zeros((1, 1))]]
        )
        a = np.zeros(r)
        a[face] = np.linalg.lstsq(system, np.append(np.zeros(len(face)), 1.0), rcond=None)[0][:-1]
        if (a >= -1e-12).all() and a @ P @ a < least:
            best, least = a, a @ P @ a
    return best
