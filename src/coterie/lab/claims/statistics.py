"""Intervals and tests for differences between runs."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

LEVEL = 0.95
"""Coverage of all intervals. Differences are significant if their corrected p-value is at most 1 minus this."""


class Mean(NamedTuple):
    """A mean with its standard error."""

    value: float
    error: float
    n: int
    """Number of values behind the mean, or 0 if the error is known from elsewhere and its distribution is normal."""

    def interval(self) -> tuple[float, float]:
        """Return the lower and the upper end of the interval of confidence."""
        half = self.error * float(self._distribution().ppf((1 + LEVEL) / 2))
        return self.value - half, self.value + half

    def p(self, expected: float) -> float:
        """Return the two-sided p-value that the true mean is `expected`.

        If all values are equal, it is that of the sign test, which does not estimate their spread.
        """
        if self.error <= 1e-12 * max(1.0, abs(self.value)):
            return 1.0 if math.isclose(self.value, expected, abs_tol=1e-12) else min(1.0, 2.0 ** (1 - self.n))
        return float(2 * self._distribution().sf(abs(self.value - expected) / self.error))

    def _distribution(self) -> Any:
        return stats.t(self.n - 1) if self.n else stats.norm()


def mean(values: Sequence[float]) -> Mean:
    """Return the mean of at least two values."""
    return Mean(float(np.mean(values)), float(stats.sem(values)), len(values))


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method."""
    order = sorted(range(len(ps)), key=lambda n: ps[n])
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, n in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[n]))
        corrected[n] = largest
    return corrected
