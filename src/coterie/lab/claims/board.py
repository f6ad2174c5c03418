"""The board of claims, docs/results/index.md."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.lab.claims.costs import derivation, hours
from coterie.lab.claims.declared import Claim, Paper, folder, folders, papers
from coterie.lab.claims.effects import RULE, Effect, Found, Verdict, found
from coterie.lab.claims.stored import Results

MOST = 4
"""Largest number of effects that are listed one by one."""


@dataclass(frozen=True)
class Judged:
    """A claim with its evidence."""

    claim: Claim
    found: Found | None

    @property
    def verdict(self) -> Verdict:
        """Verdict by the rule of the page."""
        if self.found:
            return self.found.verdict(bool(self.claim.smaller))
        if self.claim.refuted_by:
            return Verdict.CONTRADICTED
        return Verdict.CONFIRMED if self.claim.tests else Verdict.NOT_TESTED

    @property
    def words(self) -> str:
        """The verdict as text, which says if it rests on one seed."""
        single = ", one seed" if self.found and self.found.single else ""
        return f"**{self.verdict.value}**{single}"


@dataclass(frozen=True)
class Board:
    """All claims, with links from a page in the folder `at`."""

    results: Results
    at: Path

    def judged(self) -> list[tuple[Paper, list[Judged]]]:
        """Return the claims of each paper with their evidence."""
        return [(paper, [self._judged(claim) for claim in paper.claims()]) for paper in papers()]

    def page(self) -> str:
        """Return the page as Markdown."""
        by_paper = self.judged()
        parts = ["# The board of claims", INTRO, *summary(by_paper)]
        parts += ["## How a verdict is made", RULE.strip()]
        for paper, judged in by_paper:
            tested = [each for each in judged if each.verdict is not Verdict.NOT_TESTED]
            parts += [f"## {paper.name}", f"{paper.about} Tables: [{paper.page}]({paper.page})."]
            parts.append(_table(["place", "claim", "verdict", "effect", "evidence"], map(self._line, tested)))
        missing = [each for _, judged in by_paper for each in judged if each.claim.missing]
        parts += ["## Not tested, or not at the scale of the paper", MISSING]
        parts.append(_table(["claim", "hours", "command", "derivation of the hours"], map(self._lacking, missing)))
        parts += ["## The stored results", STORED]
        headings = ["results", "command", "runs", "code"]
        parts.append(_table(headings, map(self._stored, folders())))
        return "\n\n".join(parts) + "\n"

    def _judged(self, claim: Claim) -> Judged:
        compare = claim.comparison()
        return Judged(claim, found(compare, self.results) if compare else None)

    def _line(self, judged: Judged) -> list[str]:
        claim = judged.claim
        says = "<br>".join([claim.says, *[f"*{claim.note}*"] * bool(claim.note)])
        return [claim.place, says, judged.words, _effects(judged), self._evidence(judged)]

    def _evidence(self, judged: Judged) -> str:
        claim, parts = judged.claim, []
        if judged.found:
            name = judged.found.compare.folder
            parts.append(f"[{name}]({folder(name).page}), {self._stored_as(name)}, {_seeds(judged.found)}")
            parts += [f"smaller scale: {claim.smaller}"] * bool(claim.smaller)
            parts += ["older code"] * any(line.changes for line in judged.found.lines)
        parts += [self._test(name) for name in [*claim.refuted_by, *claim.tests]]
        return "<br>".join(parts)

    def _stored_as(self, name: str) -> str:
        file = next(each for each in ("runs.json", "table.md", "measured") if (self.results.root / name / each).exists())
        return f"[{file}]({os.path.relpath(self.results.root / name / file, self.at)})"

    def _test(self, name: str) -> str:
        file, _, function = name.partition("::")
        return f"[{function}]({os.path.relpath(self.results.root.parent / 'tests' / file, self.at)})"

    def _lacking(self, judged: Judged) -> list[str]:
        claim, missing = judged.claim, judged.claim.lacking()
        assert missing is not None
        needed = f"{hours(missing, self.results):.1f}"
        return [f"{claim.place}: {claim.says}", needed, f"`{missing.command}`", derivation(missing, self.results)]

    def _stored(self, name: str) -> list[str]:
        declared = folder(name)
        if name not in self.results.campaigns():
            return [f"[{name}]({declared.page})", f"`{declared.command(name)}`", "tables only", OLD.format("all")]
        lines = self.results.lines(name)
        runs = sum(len(line.row.runs) for line in lines if line.row)
        old = sum(len(line.row.runs) for line in lines if line.row and line.changes)
        code = OLD.format("all" if old == runs else old) if old else "current"
        return [f"[{name}]({declared.page})", f"`{declared.command(name)}`", str(runs), code]


INTRO = """
This page lists what the papers claim, claim by claim, and what our measurements and tests say about it. The command
`coterie claims` writes it from the [stored results](#the-stored-results). All figures are computed from these, and every
verdict follows from [the rule below](#how-a-verdict-is-made). `coterie claims --check` trains some of the stored runs
again and compares every digit.
""".strip()
MISSING = """
Hours are those of two cores. They are computed from stored seconds of a similar run, which most methods no longer need,
since dense networks are trained several times faster now. Where no similar run is stored, they are computed from
operations, at 50 billion per second.
""".strip()
STORED = """
"Older code" means that the code has changed since in a way that may change the figures, often only in their last
digits: `CHANGES` in `src/coterie/lab/papers/numbers.py` lists these changes. `coterie claims --check` shows how much a
figure moves.
""".strip()
OLD = "older code ({})"


def summary(by_paper: Sequence[tuple[Paper, Sequence[Judged]]]) -> list[str]:
    """Return the head of the page, which the README repeats: the number of claims by verdict, and some of them."""
    names = [verdict.value for verdict in Verdict]
    counted = {paper.name: Counter(each.verdict for each in judged) for paper, judged in by_paper}
    lines = [[paper, *(str(counts[verdict]) for verdict in Verdict)] for paper, counts in counted.items()]
    short = [each for _, judged in by_paper for each in judged if each.claim.short]
    told = "\n".join(f"- {each.claim.short}: {each.words}{_brief(each)}." for each in short)
    return [_table(["claims of", *names], lines), told]


def _brief(judged: Judged) -> str:
    return f" ({_effects(judged).replace('<br>', '; ')})" if judged.found and len(judged.found.effects) == 1 else ""


def _table(headings: Sequence[str], lines: "Iterator[list[str]] | Sequence[list[str]]") -> str:
    rows = [list(headings), ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _seeds(found: Found) -> str:
    if found.compare.counted:
        return found.compare.counted
    if found.compare.pool:
        return f"mean over {found.compare.pool}"
    counts = sorted({len(effect.values) for effect in found.effects})
    return f"{' or '.join(map(str, counts))} seed{'s' * (counts != [1])}"


def _effects(judged: Judged) -> str:
    """Return the effects as text: each of them if they are few, otherwise the smallest and the largest."""
    if not judged.found:
        return ""
    compare, effects = judged.found.compare, judged.found.effects
    shown = effects if len(effects) <= MOST else [function(effects, key=lambda each: each.mean) for function in (min, max)]
    alone = len(effects) == 1 and not compare.pool
    told = [_effect(each, compare.unit, "" if alone else each.label) for each in shown]
    if len(effects) > MOST:
        supporting = sum(each is True for each in judged.found.judged())
        told.insert(0, f"{supporting} of {len(effects)} cells support it; smallest and largest:")
    goal = f"more than {compare.at_least:g}" if compare.at_least is not None else _goal(compare.about, compare.within)
    return "<br>".join([*told, f"claim: {goal}{compare.unit}"])


def _goal(about: float, within: float | None) -> str:
    return f"{about:g} ± {within:g}" if about else f"at most {within:g} apart,"


def _effect(effect: Effect, unit: str, label: str) -> str:
    interval = effect.interval
    extent = f" [{_short(interval.low)}, {_short(interval.high)}]" if interval else ""
    return f"{label}: {_short(effect.mean)}{extent}{unit}".removeprefix(": ")


def _short(value: float) -> str:
    return f"{value:+.2f}"
