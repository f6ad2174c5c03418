"""How much of a round is spent on checking replies."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from benchmarks.timing import Work
from coterie.aggregate.mean import WeightedSum
from coterie.clients import engine
from coterie.core import untouched

CHECKS = [
    *((engine, name) for name in ("misfit", "misfit_letter", "finite_rows", "not_finite", "majority")),
    (untouched, "_versions"),
    (WeightedSum, "is_finite"),
]


def share_of_checks(work: Work, repeats: int) -> float:
    """Return the median share of a round that its checks take. They do not call each other."""
    shares = []
    for _ in range(repeats):
        with _watched() as spent:
            seconds = work()
        shares.append(sum(spent) / seconds)
    return statistics.median(shares)


@contextmanager
def _watched() -> Iterator[list[float]]:
    """Collect the seconds of all checks that are made inside."""
    spent: list[float] = []

    def timed(check: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **keys: Any) -> Any:
            start = time.perf_counter()
            try:
                return check(*args, **keys)
            finally:
                spent.append(time.perf_counter() - start)

        return watched

    with ExitStack() as patches:
        for owner, name in CHECKS:
            patches.enter_context(patch.object(owner, name, timed(getattr(owner, name))))
        yield spent
