"""Tables of published and measured results over existing and new users, with standard errors over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from coterie.lab.papers.comparison import (
    LABEL_SPACES,
    MIXED,
    Row,
    filled,
    mixes_label_spaces,
    target_notes,
    text,
    to_target,
)
from coterie.lab.papers.users import Picked, SeedMean, paired, seed_mean
from coterie.measure.protocols import ADAPTED, AFTER, AS_IS, BEFORE
from coterie.report.tables import Table
from coterie.report.units import DASH, scaled


def over_users(rows: Sequence[Row], reference: Mapping[str, str]) -> Table:
    """Return a table with a line per row, first for existing and then for new users.

    Each row is compared with the reference row of its data set.
    """
    bases = {row.at.get("data"): row for row in reversed(rows) if reference.items() <= row.at.items()}
    word, lines = f"against {' '.join(reference.values())}", []
    for kind, plain, adapted in (
        (AS_IS.group, AS_IS.name, ADAPTED.name),
        (BEFORE.group, BEFORE.name, AFTER.name),
    ):
        for row in rows:
            base = bases.get(row.at.get("data"))
            found, picked = _over_seeds(row, adapted), [run.picked for run in row.runs if run.picked]
            several = any(row.each(adapted, "std").values())  # a single user has no decile and no deviation
            lines.append(
                {
                    "users": kind,
                    **row.at,
                    "chooses among": LABEL_SPACES.get(row.labels, DASH) if mixes_label_spaces(rows) else DASH,
                    "published": _printed(row.users.get(kind, [])),  # type: ignore[call-overload]
                    "of 3 seeds": _printed(row.users.get(f"{kind}_over_seeds", [])),  # type: ignore[call-overload]
                    "measured": row.told(text(found)),
                    "over seeds": text(found and found.std, ".2f"),
                    word: _apart(row, base, adapted),
                    "decile": text(_over_seeds(row, adapted, "bottom_decile") if several else None),
                    "deviation": text(_over_seeds(row, adapted, "std") if several else None),
                    "not adapted": text(_over_seeds(row, plain)),
                    f"{word}, not adapted": _apart(row, base, plain),
                    "round": text(_mean(picked, "round"), ".0f"),
                    "bytes": scaled(_mean(picked, "bytes"), "B"),
                    "FLOP": scaled(_mean(picked, "flops"), ""),
                    "state": scaled(row.measured and row.measured.stored_bytes, "B"),
                    **to_target(row if kind == AS_IS.group else replace(row, target=None)),
                }
            )
    notes = [
        "Accuracy in percent after adaptation, at the round where existing users have the best validation score. "
        "Measured: mean over users, averaged over seeds ± standard error. Over seeds: standard deviation over seeds. "
        "Published: mean (bottom decile, standard deviation) over users.",
        f"{word[0].upper()}{word[1:]}: mean difference between runs of the same seed ± standard error, and in brackets "
        "the difference in standard errors. Bytes and FLOP: sums over all clients, up to that round. State: what "
        "an existing client stores between rounds, on average.",
    ]
    if mixes_label_spaces(rows):
        notes.append(f"{MIXED.partition('. ')[0]}.")
    notes += target_notes(rows)
    return filled(lines, {"users", *rows[0].at, "measured"}, notes)


def validated(rows: Sequence[Row]) -> Table:
    """Return a table of all settings that were tried, with the best one of each method marked.

    It contains validation scores only, and nothing about the test split.
    """
    best = picks(rows)
    lines = []
    for row in rows:
        found = _validation(row)
        mark = "picked" if row in best.values() else DASH
        lines.append(
            {**row.at, "validation": row.told(text(found)), "over seeds": text(found and found.std, ".2f"), "": mark}
        )
    note = (
        "Accuracy of adapted existing users on validation examples, in percent, at the best round of each run: mean "
        "over seeds."
    )
    return filled(lines, {*rows[0].at, "validation", ""}, [note])


def picks(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the row with the best mean validation score for each method, or the first of equal rows."""
    best: dict[str, Row] = {}
    for row in rows:
        other = best.get(row.at["method"])
        if (found := _validation(row)) and (other is None or found.mean > (_validation(other) or found).mean):
            best[row.at["method"]] = row
    return best


def _validation(row: Row) -> SeedMean | None:
    return seed_mean([run.picked.validation for run in row.runs if run.picked])


def _printed(figures: Sequence[float]) -> str:
    if not figures:
        return DASH
    mean, *rest = (f"{figure:.2f}" for figure in figures)
    return f"{mean} ({', '.join(rest)})" if rest else mean


def _over_seeds(row: Row, protocol: str, figure: str = "mean") -> SeedMean | None:
    return seed_mean(list(row.each(protocol, figure).values()))


def _apart(row: Row, base: Row | None, protocol: str) -> str:
    difference = paired(row.each(protocol), base.each(protocol)) if base and base is not row else None
    if difference is None:
        return DASH
    errors = difference.in_errors
    return f"{difference.mean:+.2f}" + ("" if errors is None else f" ± {difference.stderr:.2f} ({errors:+.1f})")


def _mean(picked: Sequence[Picked], name: str) -> float | None:
    return statistics.fmean(getattr(each, name) for each in picked) if picked else None
