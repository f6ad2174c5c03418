"""What the convex experiments of the Scafflix paper come to: tables, claims, charts."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from coterie.lab.papers.laboratory import Result
from coterie.report.lab_page import Line, Panel, lab_page
from coterie.report.tables import Table
from coterie.report.units import DASH

AXES = ("what", "data", "split", "method", "alpha", "variant", "seed")
SPLITS = {
    "contiguous": "blocks of the file, as in the authors' code",
    "iid": "IID, Figure 9",
    "label-ratio": "label-wise, Figure 1",
    "feature-clusters": "feature-wise, Figure 10",
    "quantity": "quantity-wise, Figure 11",
}
GAP = 1e-8
"""The gap to which rounds are counted,"""
SHARE = 1e-6
"""and the share of the gap at the start."""
PUBLISHED_RATIO = 23.55


class PlacedResult(NamedTuple):
    at: Mapping[str, str]
    result: Result


Where = tuple[str, str]


class Curves:
    """Results of one kind, by where they lie and over their seeds."""

    def __init__(self, placed: Iterable[PlacedResult], what: str) -> None:
        self.placed = [each for each in placed if each.at["what"] == what]

    def values(self, axis: str) -> list[str]:
        return list(dict.fromkeys(each.at[axis] for each in self.placed))

    def places(self) -> list[Where]:
        return list(dict.fromkeys((each.at["data"], each.at["split"]) for each in self.placed))

    def at(self, **at: str) -> list[Result]:
        return [each.result for each in self.placed if all(each.at[axis] == value for axis, value in at.items())]


def rounds_to(gaps: Sequence[float], gap: float) -> int | None:
    """The first round after which the gap is no larger; 0 is the start."""
    return next((n for n, each in enumerate(gaps) if each <= gap), None)


def mean_rounds(curves: Sequence[Result], share: bool = False, steps: bool = False) -> float | None:
    """Over seeds; None unless all get there. Local steps instead of rounds, if wanted."""
    found = []
    for curve in curves:
        gaps = curve["gap"]
        n = rounds_to(gaps, SHARE * gaps[0] if share else GAP)
        if n is None:
            return None
        found.append(curve["steps"][n] if steps else n)
    return statistics.fmean(found) if found else None


class Entry(NamedTuple):
    """A line of the main table."""

    data: str
    split: str
    alpha: str
    gd: float | None
    scafflix: float | None
    gd_share: float | None
    scafflix_share: float | None
    scafflix_steps: float | None

    def cells(self) -> list[str]:
        return [
            *(self.data, self.split, self.alpha),
            *(_number(self.gd), _number(self.scafflix), _ratio(self.gd, self.scafflix)),
            *(_number(self.gd_share), _number(self.scafflix_share)),
        ]


def entries(curves: Curves) -> list[Entry]:
    found = []
    for data, split in curves.places():
        for alpha in curves.values("alpha"):
            gd, scafflix = (curves.at(data=data, split=split, alpha=alpha, method=name) for name in ("gd", "scafflix"))
            found.append(
                Entry(
                    *(data, split, alpha),
                    mean_rounds(gd),
                    mean_rounds(scafflix),
                    mean_rounds(gd, share=True),
                    mean_rounds(scafflix, share=True),
                    mean_rounds(scafflix, share=True, steps=True),
                )
            )
    return found


def claims(found: Sequence[Entry]) -> list[str]:
    """What the paper says about Figures 1, 9, 10 and 11, and how often it holds here."""
    places = list(dict.fromkeys((each.data, each.split) for each in found))
    by_place = [[each for each in found if (each.data, each.split) == place] for place in places]
    both = [each for each in found if each.gd is not None and each.scafflix is not None]
    fewer = sum(each.scafflix < each.gd for each in both if each.gd and each.scafflix is not None)
    told = [f"Scafflix needs fewer rounds than GD at each alpha: so in {fewer} of {len(both)} lines."]
    for name in ("gd", "scafflix"):
        falling = sum(_falls([getattr(each, name) for each in place]) for place in by_place)
        who = "GD" if name == "gd" else "Scafflix"
        told.append(f"{who} needs fewer rounds as alpha falls: so on {falling} of {len(places)} splits.")
    spread = [_spread(place) for place in by_place]
    if known := [each for each in spread if each is not None]:
        told.append(
            f"But not to a given share of the gap at the start: for alpha from 0.1 down, the largest number of rounds "
            f"of GD is at most {max(known):.2f} times the smallest. A small alpha does not speed up the descent; it "
            "makes the gap at the start smaller, by alpha squared."
        )
    computed = [each.scafflix_steps / each.gd_share for each in found if each.scafflix_steps and each.gd_share]
    if computed:
        told.append(
            f"What is saved is communication: to that share, Scafflix takes {min(computed):.2f} to {max(computed):.2f} "
            "times the local gradients of GD."
        )
    return told


def _falls(rounds: Sequence[float | None]) -> bool:
    """Strictly, as alpha does."""
    return all(a is not None and b is not None and b < a for a, b in pairwise(rounds)) and len(rounds) > 1


def _spread(place: Sequence[Entry]) -> float | None:
    rounds = [each.gd_share for each in place if float(each.alpha) < 1 and each.gd_share]
    return max(rounds) / min(rounds) if rounds else None


def tables(placed: Sequence[PlacedResult]) -> list[Table]:
    made = [_convergence(placed), _steps(placed), _inexact(placed), _iterations(placed)]
    return [table for table in made if table.lines]


def _convergence(placed: Sequence[PlacedResult]) -> Table:
    found = entries(Curves(placed, "convergence"))
    headings = ["data", "split", "alpha", "GD", "Scafflix", "ratio", "GD to share", "Scafflix to share"]
    title = f"Rounds to a gap of {GAP:g}, and to {SHARE:g} of the first gap (Figures 1, 9 to 11)"
    return Table(headings, [each.cells() for each in found], title, claims(found))


def _steps(placed: Sequence[PlacedResult]) -> Table:
    """Individual step sizes are those of the main table."""
    own, common, lines = Curves(placed, "convergence"), Curves(placed, "steps"), []
    for data, split in common.places():
        for alpha in common.values("alpha"):
            at = {"data": data, "split": split, "alpha": alpha, "method": "scafflix"}
            each = [own.at(**at), common.at(**at, variant="max"), common.at(**at, variant="mean")]
            lines.append([data, split, alpha, *(_number(mean_rounds(curves)) for curves in each)])
    title = f"Scafflix with individual and with one step size: rounds to a gap of {GAP:g} (Figure 5)"
    return Table(["data", "split", "alpha", "1/L_i", "1/max L_i", "1/mean L_i"], lines, title)


def _inexact(placed: Sequence[PlacedResult]) -> Table:
    curves, lines = Curves(placed, "inexact"), []
    for data, alpha in dict.fromkeys((each.at["data"], each.at["alpha"]) for each in curves.placed):
        for variant in curves.values("variant"):
            for curve in curves.at(data=data, alpha=alpha, variant=variant):
                last = len(curve["gap"]) - 1
                lines.append([data, alpha, variant, str(last), f"{curve['gap'][0]:.2e}", f"{curve['gap'][-1]:+.2e}"])
    title = "Local optima that are sought from 100, up to a tolerance or for a number of steps (Figures 4, 13)"
    notes = ["The gap is that of the models clients end with, to the minimum of (FLIX) with exact local optima."]
    return Table(["data", "alpha", "local optima", "rounds", "gap at first", "gap at last"], lines, title, notes)


def _iterations(placed: Sequence[PlacedResult]) -> Table:
    lines: list[list[str]] = []
    tolerances: list[str] = []
    for each in Curves(placed, "iterations").placed:
        for start, counts in each.result.items():
            tolerances = [f"eps {tolerance}" for tolerance in counts]
            means = [statistics.fmean(steps) for steps in counts.values()]
            ratio = f"{means[-1] / means[0]:.2f}" if means[0] else DASH
            lines.append([each.at["data"], start, *(f"{mean:.1f}" for mean in means), ratio])
    notes = [f"Published: {PUBLISHED_RATIO}, without the data set; the text says that the start is 100."]
    title = "Steps to a local optimum, mean over 100 clients (Figure 12)"
    return Table(["data", "start", *tolerances, "last / first"], lines, title, notes)


def page(title: str, seeds: int, placed: Sequence[PlacedResult], made: Sequence[Table]) -> str:
    facts = ["l2-regularised logistic regression, mu = 0.1", "8 clients", f"coins of {seeds} seed{'s' * (seeds > 1)}"]
    rows = [*_convergence_panels(placed), *_step_panels(placed), *_inexact_panels(placed), *_iteration_panels(placed)]
    return lab_page(title, facts, made, rows)


def _convergence_panels(placed: Sequence[PlacedResult]) -> list[list[Panel]]:
    curves, rows = Curves(placed, "convergence"), []
    for data, split in curves.places():
        lines = {
            (f"{name}alpha {alpha}", n, dash): curves.at(data=data, split=split, alpha=alpha, method=method)
            for method, name, dash in (("scafflix", "", "solid"), ("gd", "GD, ", "dash"))
            for n, alpha in enumerate(curves.values("alpha"))
        }
        rows.append(_pair(f"{data}, {SPLITS[split]}", "Solid: Scafflix. Dashed: GD.", lines))
    return rows


def _step_panels(placed: Sequence[PlacedResult]) -> list[list[Panel]]:
    own, common, rows = Curves(placed, "convergence"), Curves(placed, "steps"), []
    for data, split in common.places():
        lines = {}
        for n, alpha in enumerate(common.values("alpha")):
            at = {"data": data, "split": split, "alpha": alpha, "method": "scafflix"}
            lines[f"alpha {alpha}", n, "solid"] = own.at(**at)
            lines[f"1/max L_i, alpha {alpha}", n, "dash"] = common.at(**at, variant="max")
            lines[f"1/mean L_i, alpha {alpha}", n, "dot"] = common.at(**at, variant="mean")
        title = f"{data}, {SPLITS[split].partition(',')[0]}, Figure 5"
        rows.append(_pair(title, "Step sizes, solid: 1/L_i; dashed: 1/max L_i; dotted: 1/mean L_i.", lines))
    return rows


def _inexact_panels(placed: Sequence[PlacedResult]) -> list[list[Panel]]:
    curves, rows = Curves(placed, "inexact"), []
    for data, alpha in dict.fromkeys((each.at["data"], each.at["alpha"]) for each in curves.placed):
        row = []
        for how, by_tolerance in (("by tolerance", True), ("by number of local steps", False)):
            lines = [
                Line(variant, [abs(gap) for gap in curve["gap"]], n)
                for n, variant in enumerate(
                    each for each in curves.values("variant") if each.startswith("eps") is by_tolerance
                )
                for curve in curves.at(data=data, alpha=alpha, variant=variant)
            ]
            title = f"{data}, inexact local optima, alpha = {alpha}, Figure {'4' if alpha == '0.1' else '13'}"
            caption = f"Local optima sought {how}. Size of the gap: it may pass through zero."
            row.append(Panel(title, "|objective gap|", lines, caption))
        rows.append(row)
    return rows


def _iteration_panels(placed: Sequence[PlacedResult]) -> list[list[Panel]]:
    return [
        [
            Panel(
                f"{each.at['data']}, steps to a local optimum from {start}, Figure 12",
                "local steps",
                [Line(f"eps {eps}", counts, n, first=1) for n, (eps, counts) in enumerate(by_tolerance.items())],
                "100 clients, label-wise.",
                "client",
            )
            for start, by_tolerance in each.result.items()
        ]
        for each in Curves(placed, "iterations").placed
    ]


def _pair(title: str, caption: str, lines: Mapping[tuple[str, int, str], Sequence[Result]]) -> list[Panel]:
    """Gap and gradient."""
    kinds = (("gap", "objective gap"), ("gradient", "squared gradient norm"))
    return [
        Panel(
            title, axis, [Line(name, _mean(curves, key), n, dash) for (name, n, dash), curves in lines.items()], caption
        )
        for key, axis in kinds
    ]


def _mean(curves: Sequence[Result], key: str) -> list[float]:
    """Over seeds, as far as all go."""
    return [statistics.fmean(values) for values in zip(*(curve[key] for curve in curves), strict=False)]


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def _ratio(gd: float | None, scafflix: float | None) -> str:
    return f"{gd / scafflix:.1f}" if gd and scafflix else DASH
