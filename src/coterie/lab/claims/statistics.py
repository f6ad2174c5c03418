"""Intervals and tests for differences between runs."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
"""Coverage of all intervals. Differences are significant if their corrected p-value is at most 1 minus this."""


class Interval(NamedTuple):
    """The mean of some values, with its interval of confidence."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Return the t interval of the mean of at least two values."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    half = error * float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1))
    return Interval(mean, mean - half, mean + half)


def p_of_mean(values: Sequence[float], expected: float) -> float:
    """Return the two-sided p-value of the t test that the mean of at least two values is `expected`.

    If all values are equal, the p-value is that of the sign test, which does not estimate their spread.
    """
    if np.ptp(values) <= 1e-12 * max(1.0, float(np.max(np.abs(values)))):
        return 1.0 if math.isclose(values[0], expected, abs_tol=1e-12) else min(1.0, 2.0 ** (1 - len(values)))
    return float(stats.ttest_1samp(values, expected).pvalue)


def p_of_one(value: float, error: float, expected: float) -> float:
    """Return the two-sided p-value of a normal value with a known standard error."""
    return float(2 * stats.norm.sf(abs(value - expected) / error))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method."""
    order = sorted(range(len(ps)), key=lambda n: ps[n])
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, n in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[n]))
        corrected[n] = largest
    return corrected
