"""Effects: what a comparison of stored figures shows, and the rule by which a verdict follows from it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from coterie.errors import UserError
from coterie.lab.claims.declared import Compare
from coterie.lab.claims.statistics import LEVEL, Mean, holm, mean
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
    """Effect by seed, or by cell of the pool. A table that is stored as text only has the mean over seeds."""
    error: float | None = None
    """Standard error of a single value, or None if it is not known."""
    seeds: int = 1
    """Number of seeds behind a single value. If it is 1, its error is that over clients."""

    @property
    def value(self) -> float:
        """The effect."""
        return math.fsum(self.values) / len(self.values)

    @property
    def n(self) -> int:
        """Number of values or seeds."""
        return max(len(self.values), self.seeds)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Interval of confidence, or None for a single seed."""
        known = self._mean()
        return known.interval() if known and self.n > 1 else None

    def p(self, expected: float) -> float:
        """Return the p-value that the effect is `expected`. It is 1 if nothing is known about the error."""
        known = self._mean()
        return known.p(expected) if known else 1.0

    def _mean(self) -> Mean | None:
        if len(self.values) > 1:
            return mean(self.values)
        return Mean(self.value, self.error, self.seeds if self.seeds > 1 else 0) if self.error else None


@dataclass(frozen=True)
class Found:
    """The effects of a comparison."""

    compare: Compare
    effects: Sequence[Effect]
    lines: Sequence[Line]
    """Stored lines that were used."""
    seeds: Sequence[int]
    """Number of seeds of each effect, or of all effects in a pool."""

    @property
    def single(self) -> bool:
        """Whether some effect rests on a single seed."""
        return not self.compare.counted and min(self.seeds) == 1

    def judged(self) -> list[bool | None]:
        """Return for each effect whether it supports the claim (True), speaks against it (False) or neither."""
        if self.compare.at_least is None:
            return [self._is_within(effect) for effect in self.effects]
        least = self.compare.at_least
        if self.compare.counted:
            return [effect.value > least for effect in self.effects]
        ps = holm([effect.p(least) for effect in self.effects])
        found = zip(self.effects, ps, strict=True)
        return [effect.value > least if p <= 1 - LEVEL else None for effect, p in found]

    def _is_within(self, effect: Effect) -> bool | None:
        about, within = self.compare.about, self.compare.within
        assert within is not None
        if effect.interval is None:
            return abs(effect.value - about) <= within or (False if self.compare.counted else None)
        low, high = effect.interval
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
  t test, corrected for the number of cells by Holm's method, is at most {1 - LEVEL:.2f}. It **speaks against** the
  claim if it is significantly smaller. If all seeds agree to the last digit, the sign test replaces the t test. For a
  claim that two figures agree, the whole interval must be within the stated distance, or outside of it.
- **Counted** quantities, such as operations, are not random and need no test.
- **Confirmed**: every cell supports the claim, at the scale of the paper. **Contradicted**: some cell speaks against
  it, at the scale of the paper. **Confirmed at smaller scale**: every cell supports it, but the measurement is smaller
  than that of the paper. **Not confirmed**: everything else that was measured. "Evidence against it" means that some
  cell speaks against the claim, which is not enough to contradict it at a smaller scale or with one seed.
- **One seed** is at most "confirmed at smaller scale", and never "contradicted". There is no interval over seeds. Such
  an effect supports a claim if it is significant relative to the standard errors over clients (Holm's method again),
  or, for a claim that two figures agree, if it is within the stated distance.
- A **theorem** is confirmed if a test checks it on problems where everything can be computed, which is no proof. It is
  contradicted if a test has a counterexample to what is printed; the note says what holds instead.
"""
"""The rule in words, for the page."""


def found(compare: Compare, results: Results) -> Found:
    """Return the effects of a comparison. Raises UserError if there is nothing to compare."""
    lines = results.lines(compare.folder, compare.best_rate)
    pairs = list(_pairs(compare, lines))
    if not pairs:
        raise UserError(
            f"results/{compare.folder} has no lines with {compare.of} and {compare.over}; correct the claim"
        )
    effects = [_effect(compare, results.seeds(compare.folder), *pair) for pair in pairs]
    seeds = [effect.n for effect in effects]
    if compare.pool:
        effects = [Effect(f"{len(effects)} {compare.pool}", [effect.value for effect in effects])]
    used = {id(line): line for _, one, other in pairs for line in (one, other)}
    return Found(compare, effects, list(used.values()), seeds)


def _pairs(compare: Compare, lines: Sequence[Line]) -> Iterator[tuple[str, Line, Line]]:
    """Yield pairs of lines to compare, each with a label. Lines without the figure are omitted."""
    has = [line for line in lines if line.row or compare.figure in line.at]
    ones = [line for line in has if line.matches(compare.of)]
    others = [line for line in has if line.matches(compare.over)] if compare.over else []
    columns = () if ones and ones[0].row is None else _differing(compare, ones)
    against = _differing(compare, others)
    for one in ones:
        told = " ".join(_place(one, [*compare.match, *columns]))
        if not compare.over:
            yield told, one, one
        for other in others:
            if one is not other and all(one.at[axis] == other.at[axis] for axis in compare.match):
                theirs = _place(other, against)
                yield " ".join([told, *["against"] * bool(theirs), *theirs]).strip(), one, other


def _differing(compare: Compare, lines: Sequence[Line]) -> list[str]:
    """Return the axes on which lines differ, apart from those on which pairs match."""
    known = {*compare.match, *["rate"] * compare.best_rate}
    axes = list(lines[0].at) if lines else []
    return [axis for axis in axes if axis not in known and len({line.at[axis] for line in lines}) > 1]


def _place(line: Line, axes: Sequence[str]) -> list[str]:
    """Return the values on some axes, as parts of a label. Numbers come with the name of their axis."""
    return [f"{axis} {line.at[axis]}" if line.at[axis][:1].isdigit() else line.at[axis] for axis in axes]


def _effect(compare: Compare, seeds: int, label: str, one: Line, other: Line) -> Effect:
    alone = not compare.over and not compare.other
    figure = compare.other or compare.figure
    mine = one.values(compare.figure)
    theirs: Values = {None: 0.0} if alone else other.values(figure)
    common = mine.keys() & theirs.keys() or (mine if None in theirs else theirs if None in mine else ())
    if not common:
        raise UserError(f"{label}: the lines have no seed in common; correct the claim")
    per = next(iter(one.values(compare.per).values())) if compare.per else 1.0
    pairs = [(mine.get(seed, mine.get(None, 0.0)), theirs.get(seed, theirs.get(None, 0.0))) for seed in common]
    values = [_compared(compare.form, *pair) / per for pair in pairs]
    errors = (one.error(compare.figure), 0.0 if alone else other.error(figure))
    error = _error(compare.form, *pairs[0], *errors)
    return Effect(label, values, None if error is None else error / per, seeds if one.row is None else 1)


def _compared(form: str, mine: float, theirs: float) -> float:
    if form == "difference":
        return mine - theirs
    return 100 * (1 - mine / theirs) if form == "percent less" else mine / theirs


def _error(form: str, mine: float, theirs: float, e: float | None, f: float | None) -> float | None:
    """Return the standard error of a comparison of independent figures with the errors e and f."""
    if e is None or f is None:
        return None
    if form == "difference":
        return math.hypot(e, f)
    return (100 if form == "percent less" else 1) * mine / theirs * math.hypot(e / mine, f / theirs)
