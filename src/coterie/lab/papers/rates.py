"""Choice of the learning rate of each method by its validation score."""

import math
from collections.abc import Sequence

from coterie.lab.papers.comparison import Row


def best(rows: Sequence[Row]) -> list[Row]:
    """Return the row with the best validation score from each group of rows that differ only in their rate."""
    return [max(group, key=_validated) for group in _groups(rows).values()]


def remarks(rows: Sequence[Row]) -> list[str]:
    """Return notes on methods that might do better with a rate that was not tried."""
    ends: list[str] = []
    fewer: list[str] = []
    for at, group in _groups(rows).items():
        chosen, rates = max(group, key=_validated), [float(row.at["rate"]) for row in group]
        if not all(row.runs or row.diverged for row in group):
            fewer += [" ".join(at)] * bool(chosen.runs)
        elif len(rates) > 1 and float(chosen.at["rate"]) in (min(rates), max(rates)):
            ends.append(" ".join(at))
    told = {
        "The best rate is the largest or the smallest one that was tried, so another rate may be better": ends,
        "Some rates are not measured yet": fewer,
    }
    return [f"{what}: {'; '.join(which)}." for what, which in told.items() if which]


def _groups(rows: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(value for axis, value in row.at.items() if axis != "rate"), []).append(row)
    return found


def _validated(row: Row) -> float:
    measured = row.measured
    return measured.validation.mean if measured and measured.validation else -math.inf
