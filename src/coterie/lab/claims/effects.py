"""Effects: what a comparison of stored figures shows, and the rule by which a verdict follows from it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from coterie.errors import UserError
from coterie.lab.claims.declared import Compare
from coterie.lab.claims.statistics import LEVEL, Interval, holm, interval, p_of_mean, p_of_one
from coterie.lab.claims.stored import Line, Results, Values


class Verdict(Enum):
    """What our evidence says about a claim."""

    CONFIRMED = "confirmed"
    SMALLER = "confirmed at smaller scale"
    NOT_CONFIRMED = "not confirmed"
    CONTRADICTED = "contradicted"
    NOT_TESTED = "not tested"


@dataclass(frozen=True)
class Effect:
    """The effect in one cell of a table, or in a pool of cells."""

    label: str
    values: Sequence[float]
    """Effect by seed, or by cell of the pool."""
    error: float | None = None
    """Standard error over clients, which decides if there is only one seed."""

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    @property
    def interval(self) -> Interval | None:
        """Interval of the mean, or None if there is only one value."""
        return interval(self.values) if len(self.values) > 1 else None

    def p(self, expected: float) -> float:
        """Return the p-value that the effect is `expected`. It is 1 if nothing is known about the error."""
        if len(self.values) > 1:
            return p_of_mean(self.values, expected)
        return p_of_one(self.mean, self.error, expected) if self.error else 1.0


@dataclass(frozen=True)
class Found:
    """The effects of a comparison."""

    compare: Compare
    effects: Sequence[Effect]
    lines: Sequence[Line]
    """Stored lines that were used."""

    @property
    def single(self) -> bool:
        """Whether some effect rests on a single seed."""
        return not self.compare.counted and any(len(effect.values) == 1 for effect in self.effects)

    def judged(self) -> list[bool | None]:
        """Return for each effect whether it supports the claim (True), speaks against it (False) or neither."""
        if self.compare.at_least is None:
            return [self._is_within(effect) for effect in self.effects]
        least = self.compare.at_least
        if self.compare.counted:
            return [effect.mean > least for effect in self.effects]
        ps = holm([effect.p(least) for effect in self.effects])
        found = zip(self.effects, ps, strict=True)
        return [effect.mean > least if p <= 1 - LEVEL else None for effect, p in found]

    def _is_within(self, effect: Effect) -> bool | None:
        about, within = self.compare.about, self.compare.within
        assert within is not None
        if effect.interval is None:
            return abs(effect.mean - about) <= within or (False if self.compare.counted else None)
        _, low, high = effect.interval
        if about - within <= low and high <= about + within:
            return True
        return False if low > about + within or high < about - within else None

    def verdict(self, smaller: bool) -> Verdict:
        """Return the verdict. `smaller` says that the measurement is smaller than that of the paper."""
        judged = self.judged()
        conclusive = not smaller and not self.single
        if all(judged):
            return Verdict.CONFIRMED if conclusive else Verdict.SMALLER
        return Verdict.CONTRADICTED if conclusive and False in judged else Verdict.NOT_CONFIRMED


RULE = f"""
- A **comparison** takes one or more cells. In each, runs of the same seed are compared, and the effect is the mean over
  seeds. Intervals are t intervals of {LEVEL:.0%}. If many splits of the data are averaged instead, it says so.
- An effect **supports** a claim if it is larger than the stated bound, and significantly so: the p-value of the paired
  t test, corrected for the number of cells by Holm's method, is at most {1 - LEVEL:.2f}. It **speaks against** the claim
  if it is significantly smaller. If all seeds agree to the last digit, the sign test replaces the t test. For a claim
  that two figures agree, the whole interval must be within the stated distance, or outside of it.
- **Counted** quantities, such as operations, are not random and need no test.
- **Confirmed**: every cell supports the claim, at the scale of the paper. **Contradicted**: some cell speaks against
  it, at the scale of the paper. **Confirmed at smaller scale**: every cell supports it, but the measurement is smaller
  than that of the paper. **Not confirmed**: everything else that was measured.
- **One seed** is at most "confirmed at smaller scale", and never "contradicted". There is no interval. Such an effect
  supports a claim if it is significant relative to the standard errors over clients (Holm's method again), or, for a
  claim that two figures agree, if it is within the stated distance.
- A **theorem** is confirmed if a test checks it on problems where everything can be computed, which is no proof. It is
  contradicted if a test has a counterexample to what is printed; the note says what holds instead.
"""
"""The rule in words, for the page."""


def found(compare: Compare, results: Results) -> Found:
    """Return the effects of a comparison. Raises UserError if there is nothing to compare."""
    lines = results.lines(compare.folder, compare.best_rate)
    pairs = list(_pairs(compare, lines))
    if not pairs:
        raise UserError(f"results/{compare.folder} has no lines with {compare.of} and {compare.over}; correct the claim")
    effects = [_effect(compare, *pair) for pair in pairs]
    if compare.pool:
        effects = [Effect(f"{len(effects)} {compare.pool}", [effect.mean for effect in effects])]
    used = {id(line): line for _, one, other in pairs for line in (one, other)}
    return Found(compare, effects, list(used.values()))


def _pairs(compare: Compare, lines: Sequence[Line]) -> Iterator[tuple[str, Line, Line]]:
    """Yield pairs of lines to compare, each with a label. Lines without the figure are omitted."""
    has = [line for line in lines if line.row or compare.figure in line.at]
    if not compare.over:
        names = compare.match or list(has[0].at if has and has[0].row else ())
        for line in has:
            if line.matches(compare.of):
                yield " ".join(line.at[axis] for axis in names), line, line
        return
    for one in has:
        for other in has:
            both = all(one.at[axis] == other.at[axis] for axis in compare.match)
            if both and one is not other and one.matches(compare.of) and other.matches(compare.over):
                differ = [axis for axis, wanted in compare.over.items() if not isinstance(wanted, str)]
                parts = [one.at[axis] for axis in compare.match] + [f"against {other.at[axis]}" for axis in differ]
                yield " ".join(parts), one, other


def _effect(compare: Compare, label: str, one: Line, other: Line) -> Effect:
    mine = one.values(compare.figure)
    alone = not compare.over and not compare.other
    theirs: Values = {None: 0.0} if alone else other.values(compare.other or compare.figure)
    seeds = mine.keys() & theirs.keys() or (mine if None in theirs else theirs if None in mine else ())
    pairs = [(mine.get(seed, mine.get(None, 0.0)), theirs.get(seed, theirs.get(None, 0.0))) for seed in seeds]
    if not pairs:
        raise UserError(f"{label}: both lines have runs of different seeds only; correct the claim")
    values = [_compared(compare.form, *pair) for pair in pairs]
    errors = (one.error(compare.figure), 0.0 if alone else other.error(compare.other or compare.figure))
    known = [error for error in errors if error is not None]
    error = math.hypot(*known) if len(known) == len(errors) and compare.form == "difference" else None
    return Effect(label, values, error)


def _compared(form: str, mine: float, theirs: float) -> float:
    if form == "difference":
        return mine - theirs
    return 100 * (1 - mine / theirs) if form == "percent less" else mine / theirs
