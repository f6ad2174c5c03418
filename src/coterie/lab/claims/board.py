"""The board of claims, docs/results/index.md."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.lab.claims.costs import derivation, hours
from coterie.lab.claims.declared import Claim, Compare, Paper, folder, folders, papers
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
        """The verdict as text. It says if it rests on one seed, and if some cell speaks against the claim."""
        parts = [f"**{self.verdict.value}**"]
        if self.found:
            opposite = self.verdict is Verdict.NOT_CONFIRMED and False in self.found.judged()
            parts += ["evidence against it"] * opposite + ["one seed"] * self.found.single
        return ", ".join(parts)


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
        first, *lines = summary(by_paper)
        parts = ["# The board of claims", INTRO, first, "\n".join(lines), _counts(by_paper)]
        parts += ["## How a verdict is made", RULE.strip()]
        for paper, judged in by_paper:
            tested = [each for each in judged if each.verdict is not Verdict.NOT_TESTED]
            parts += [f"## {paper.name}", f"{paper.about} Tables: [{paper.page}]({paper.page})."]
            parts.append(_table(["place", "claim", "verdict", "effect", "evidence"], map(self._line, tested)))
        missing = [each for _, judged in by_paper for each in judged if self._lacks(each)]
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
        file = next(
            each for each in ("runs.json", "table.md", "measured") if (self.results.root / name / each).exists()
        )
        return f"[{file}]({os.path.relpath(self.results.root / name / file, self.at)})"

    def _test(self, name: str) -> str:
        file, _, function = name.partition("::")
        return f"[{function}]({os.path.relpath(self.results.root.parent / 'tests' / file, self.at)})"

    def _lacks(self, judged: Judged) -> bool:
        """Return whether something is missing that is not measured in the meantime."""
        missing = judged.claim.lacking()
        return missing is not None and bool(derivation(missing, self.results))

    def _lacking(self, judged: Judged) -> list[str]:
        claim, missing = judged.claim, judged.claim.lacking()
        assert missing is not None
        command = f"`{missing.command(missing.out)}`"
        needed = f"{hours(missing, self.results):.1f}"
        return [f"{claim.place}: {claim.says}", needed, command, derivation(missing, self.results)]

    def _stored(self, name: str) -> list[str]:
        declared = self.results.declared(name)
        if name not in self.results.campaigns():
            return [f"[{name}]({declared.page})", f"`{declared.command(name)}`", "tables only", OLD.format("all")]
        lines = self.results.lines(name)
        runs = sum(len(line.row.runs) for line in lines if line.row)
        old = sum(len(line.row.runs) for line in lines if line.row and line.changes)
        code = OLD.format("all" if old == runs else old) if old else "current"
        return [f"[{name}]({declared.page})", f"`{declared.command(name)}`", str(runs), code]


INTRO = """
This page lists what the papers claim, claim by claim, and what our measurements and tests say about it. The command
`coterie claims` writes it from the [stored results](#the-stored-results). All figures are computed from these, and
every verdict follows from [the rule below](#how-a-verdict-is-made). `coterie claims --check` trains some of the stored
runs again and compares every digit.
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
    """Return the lines that the README repeats: the number of claims by verdict, and some claims with their verdict."""
    every = [each for _, judged in by_paper for each in judged]
    counts = Counter(each.verdict for each in every)
    told = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)
    lines = [f"- {each.claim.short}: {each.words}{_brief(each)}." for each in every if each.claim.short]
    return [f"{len(every)} claims: {told}.", *lines]


def _counts(by_paper: Sequence[tuple[Paper, Sequence[Judged]]]) -> str:
    counted = {paper.name: Counter(each.verdict for each in judged) for paper, judged in by_paper}
    lines = [[paper, *(str(counts[verdict]) for verdict in Verdict)] for paper, counts in counted.items()]
    return _table(["claims of", *(verdict.value for verdict in Verdict)], lines)


def _brief(judged: Judged) -> str:
    """Return the effect, or the smallest and the largest one, in brackets."""
    if not judged.found:
        return ""
    compare, effects = judged.found.compare, judged.found.effects
    if len(effects) == 1:
        return f" ({_effect(effects[0], compare, '')})"
    least, most = (_short(each.value, compare) for each in _extremes(effects))
    return f" ({least} to {most}{compare.unit} in {len(effects)} cells)"


def _table(headings: Sequence[str], lines: "Iterator[list[str]] | Sequence[list[str]]") -> str:
    rows = [list(headings), ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _seeds(found: Found) -> str:
    if found.compare.counted:
        return found.compare.counted
    counts = sorted(set(found.seeds))
    return f"{' or '.join(map(str, counts))} seed{'s' * (counts != [1])}"


def _effects(judged: Judged) -> str:
    """Return the effects as text: each of them if they are few, otherwise the smallest and the largest."""
    if not judged.found:
        return ""
    compare, effects = judged.found.compare, judged.found.effects
    alone = len(effects) == 1 and not compare.pool
    if len(effects) <= MOST:
        told = [_effect(each, compare, "" if alone else each.label) for each in effects]
    else:
        supporting = sum(each is True for each in judged.found.judged())
        told = [f"{supporting} of {len(effects)} cells support it; smallest and largest:"]
        told += [_effect(each, compare, each.label) for each in _extremes(effects)]
    return "<br>".join([*told, f"claim: {_goal(compare)}"])


def _extremes(effects: Sequence[Effect]) -> list[Effect]:
    return [choose(effects, key=lambda each: each.value) for choose in (min, max)]


def _goal(compare: Compare) -> str:
    if compare.at_least is not None:
        return f"more than {compare.at_least:g}{compare.unit}"
    if compare.about:
        return f"{compare.about:g} ± {compare.within:g}{compare.unit}"
    return f"at most {compare.within:g}{compare.unit} apart"


def _effect(effect: Effect, compare: Compare, label: str) -> str:
    interval = None if compare.counted else effect.interval
    extent = f" [{_short(interval[0], compare)}, {_short(interval[1], compare)}]" if interval else ""
    return f"{label}: {_short(effect.value, compare)}{extent}{compare.unit}".removeprefix(": ")


def _short(value: float, compare: Compare) -> str:
    signed = compare.form != "ratio" and (compare.over or compare.other)
    return f"{value:{'+' if signed else ''}.2f}"
