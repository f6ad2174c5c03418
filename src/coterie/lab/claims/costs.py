"""What it costs to measure what is missing."""

from coterie.errors import UserError
from coterie.lab.claims.declared import Like, Missing
from coterie.lab.claims.stored import Results

FLOPS_PER_SECOND = 50e9
"""Sustained speed of two cores, for parts of a cost that have no similar stored run."""


def hours(missing: Missing, results: Results) -> float:
    """Return the hours that a measurement takes."""
    return sum(part.runs * part.rounds * _seconds(part, results) for part in missing.parts()) / 3600


def derivation(missing: Missing, results: Results) -> str:
    """Return how the hours are computed, as text."""
    return "; ".join(_derived(part, results) for part in missing.parts())


def _seconds(part: Like, results: Results) -> float:
    """Return the seconds of a round."""
    if not part.folder:
        return part.times * part.flops / FLOPS_PER_SECOND
    rows = {line.row.at and "-".join(line.at.values()): line.row for line in results.lines(part.folder) if line.row}
    measured = rows[part.row].measured if part.row in rows else None
    if measured is None:
        raise UserError(f"results/{part.folder} has no run {part.row}; correct the cost of the claim")
    return part.times * measured.seconds


def _derived(part: Like, results: Results) -> str:
    source = f"{part.folder} {part.row}" if part.folder else f"{part.flops:.2g} operations"
    times = f", times {part.times:g}" if part.times != 1 else ""
    why = f" ({part.why})" if part.why else ""
    return f"{part.runs} runs × {part.rounds} rounds × {_seconds(part, results):.3g} s: {source}{times}{why}"
