"""What it costs to measure what is missing: rounds of the runs that a command still has to do, times their seconds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.errors import UserError
from coterie.lab.claims.declared import Cost, Missing
from coterie.lab.claims.stored import Results, matches
from coterie.lab.papers.campaign import Campaign
from coterie.lab.papers.experiment import Cell
from coterie.lab.papers.laboratory import Measurement

FLOPS_PER_SECOND = 50e9
"""Sustained speed of two cores, for runs that resemble no stored run."""


def hours(missing: Missing, results: Results) -> float:
    """Return the hours that a command takes."""
    return sum(_seconds(part, results) * times for part, _, times in _shares(missing, results)) / 3600


def derivation(missing: Missing, results: Results) -> str:
    """Return how the hours are computed, as text."""
    return "; ".join(_told(part, runs, times, results) for part, runs, times in _shares(missing, results))


def _shares(missing: Missing, results: Results) -> Iterator[tuple[Cost, int, int]]:
    """Yield each part of the cost with the number of runs and of rounds that it is about."""
    campaign = missing.campaign(results.root / missing.out if missing.out else Path("nothing", "stored"))
    todo: Sequence[Cell | Measurement] = campaign.missing()
    if not todo:
        return
    for part in missing.parts():
        mine = [each for each in todo if not part.once and matches(each.at, part.where)]
        rounds = sum(each.recipe.run.rounds for each in mine) if isinstance(campaign, Campaign) else len(mine)
        if mine or part.once:
            yield part, len(mine), 1 if part.once else rounds
        todo = [each for each in todo if each not in mine]
    if todo:
        raise UserError(f"{missing.command(missing.out)} has {len(todo)} runs without a cost; add it")


def _seconds(part: Cost, results: Results) -> float:
    """Return the seconds of a round."""
    if not part.folder:
        return part.times * (part.seconds or part.flops / FLOPS_PER_SECOND)
    rows = {"-".join(line.at.values()): line.row for line in results.lines(part.folder)}
    row = rows.get(part.row)
    if row is None or row.measured is None:
        raise UserError(f"results/{part.folder} has no run {part.row}; correct the cost of the claim")
    return part.times * row.measured.seconds


def _told(part: Cost, runs: int, rounds: int, results: Results) -> str:
    why = f" ({part.why})" if part.why else ""
    seconds = _seconds(part, results)
    if part.once:
        return f"once {seconds / 3600:.1f} h{why}"
    of_run = f"{part.folder} {part.row}" if part.folder else f"{part.flops:.2g} operations" if part.flops else ""
    times = f" times {part.times:g}" if part.times != 1 else ""
    source = f", as {of_run}{times}" if of_run else ""
    amount = f"{runs} runs, {rounds:,} rounds" if rounds != runs else f"{runs:,} measurements"
    return f"{amount} of {seconds:.3g} s{source}{why}"
