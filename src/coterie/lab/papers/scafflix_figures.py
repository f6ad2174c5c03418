"""Tables, charts and checked claims of the convex experiments of Scafflix."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from coterie.lab.papers.laboratory import Result
from coterie.report.panels import Line, Panel
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
"""Rounds are counted until the objective gap is at most this large."""
SHARE = 1e-6
"""Rounds are also counted until the gap is at most this share of the gap at the start."""
PUBLISHED_RATIO = 23.55


class PlacedResult(NamedTuple):
    """The result of a measurement, with its place in the experiment."""

    at: Mapping[str, str]
    """Value on each axis of the experiment."""
    result: Result


Where = tuple[str, str]


class Curves:
    """Results of one kind of measurement, which can be selected by their place."""

    def __init__(self, placed: Iterable[PlacedResult], what: str) -> None:
        self.placed = [each for each in placed if each.at["what"] == what]

    def values(self, axis: str) -> list[str]:
        """Return all values on an axis."""
        return list(dict.fromkeys(each.at[axis] for each in self.placed))

    def places(self) -> list[Where]:
        """Return all pairs of data set and split."""
        return list(dict.fromkeys((each.at["data"], each.at["split"]) for each in self.placed))

    def at(self, **at: str) -> list[Result]:
        """Return the results that have these values on the axes, one for each seed."""
        return [each.result for each in self.placed if all(each.at[axis] == value for axis, value in at.items())]


def rounds_to(gaps: Sequence[float], gap: float) -> int | None:
    """Return the first round after which the gap is at most `gap`, or None. 0 means the start."""
    return next((n for n, each in enumerate(gaps) if each <= gap), None)


def mean_rounds(curves: Sequence[Result], share: bool = False, steps: bool = False) -> float | None:
    """Average the number of rounds to the gap over seeds, or return None if a seed does not reach it.

    `share` counts to a share of the first gap, and `steps` counts local steps instead of rounds.
    """
    found = []
    for curve in curves:
        gaps = curve["gap"]
        n = rounds_to(gaps, SHARE * gaps[0] if share else GAP)
        if n is None:
            return None
        found.append(curve["steps"][n] if steps else n)
    return statistics.fmean(found) if found else None


class Entry(NamedTuple):
    """A line of the main table: rounds to a gap, and to a share of the first gap."""

    data: str
    split: str
    alpha: str
    gd: float | None
    scafflix: float | None
    gd_share: float | None
    scafflix_share: float | None
    scafflix_steps: float | None

    def cells(self) -> list[str]:
        """Return the cells of the line."""
        return [
            *(self.data, self.split, self.alpha),
            *(_number(self.gd), _number(self.scafflix), _ratio(self.gd, self.scafflix)),
            *(_number(self.gd_share), _number(self.scafflix_share)),
        ]


def entries(curves: Curves) -> list[Entry]:
    """Return the lines of the main table."""
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
    """Return the claims of the paper about Figures 1, 9, 10 and 11, and how often they hold here."""
    places = list(dict.fromkeys((each.data, each.split) for each in found))
    by_place = [[each for each in found if (each.data, each.split) == place] for place in places]
    both = [each for each in found if each.gd is not None and each.scafflix is not None]
    fewer = sum(each.scafflix < each.gd for each in both if each.gd and each.scafflix is not None)
    told = [f"Claim: Scafflix needs fewer rounds than GD at each alpha. It holds in {fewer} of {len(both)} lines."]
    for name in ("gd", "scafflix"):
        falling = sum(_falls([getattr(each, name) for each in place]) for place in by_place)
        who = "GD" if name == "gd" else "Scafflix"
        told.append(
            f"Claim: {who} needs fewer rounds as alpha decreases. It holds on {falling} of {len(places)} splits."
        )
    spread = [_spread(place) for place in by_place]
    if known := [each for each in spread if each is not None]:
        told.append(
            "The number of rounds to a given share of the first gap hardly depends on alpha: for alpha of 0.1 and "
            f"less, the largest number of GD is at most {max(known):.2f} times the smallest. A small alpha does not "
            "speed up the descent. It makes the first gap smaller, by a factor of alpha squared."
        )
    computed = [each.scafflix_steps / each.gd_share for each in found if each.scafflix_steps and each.gd_share]
    if computed:
        told.append(
            f"Scafflix saves communication, not computation: to reach this share, it needs {min(computed):.2f} to "
            f"{max(computed):.2f} times the local gradients of GD."
        )
    return told


def _falls(rounds: Sequence[float | None]) -> bool:
    """Return whether the number of rounds decreases strictly with alpha."""
    return all(a is not None and b is not None and b < a for a, b in pairwise(rounds)) and len(rounds) > 1


def _spread(place: Sequence[Entry]) -> float | None:
    rounds = [each.gd_share for each in place if float(each.alpha) < 1 and each.gd_share]
    return max(rounds) / min(rounds) if rounds else None


def tables(placed: Sequence[PlacedResult]) -> list[Table]:
    """Return the tables of all results so far. Empty tables are omitted."""
    made = [_convergence(placed), _steps(placed), _inexact(placed), _iterations(placed)]
    return [table for table in made if table.lines]


def _convergence(placed: Sequence[PlacedResult]) -> Table:
    found = entries(Curves(placed, "convergence"))
    headings = ["data", "split", "alpha", "GD", "Scafflix", "ratio", "GD to share", "Scafflix to share"]
    title = f"Rounds to a gap of {GAP:g}, and to {SHARE:g} of the first gap (Figures 1, 9 to 11)"
    return Table(headings, [each.cells() for each in found], title, claims(found))


def _steps(placed: Sequence[PlacedResult]) -> Table:
    """Compare individual step sizes, as in the main table, with one step size for all clients."""
    own, common, lines = Curves(placed, "convergence"), Curves(placed, "steps"), []
    for data, split in common.places():
        for alpha in common.values("alpha"):
            at = {"data": data, "split": split, "alpha": alpha, "method": "scafflix"}
            each = [own.at(**at), common.at(**at, variant="max"), common.at(**at, variant="mean")]
            lines.append([data, split, alpha, *(_number(mean_rounds(curves)) for curves in each)])
    title = f"Scafflix with individual step sizes and with a common one: rounds to a gap of {GAP:g} (Figure 5)"
    return Table(["data", "split", "alpha", "1/L_i", "1/max L_i", "1/mean L_i"], lines, title)


def _inexact(placed: Sequence[PlacedResult]) -> Table:
    curves, lines = Curves(placed, "inexact"), []
    for data, alpha in dict.fromkeys((each.at["data"], each.at["alpha"]) for each in curves.placed):
        for variant in curves.values("variant"):
            for curve in curves.at(data=data, alpha=alpha, variant=variant):
                last = len(curve["gap"]) - 1
                lines.append([data, alpha, variant, str(last), f"{curve['gap'][0]:.2e}", f"{curve['gap'][-1]:+.2e}"])
    title = "Inexact local optima, searched from 100 up to a tolerance or for a number of steps (Figures 4 and 13)"
    notes = ["The gap compares the final models of the clients with the minimum of FLIX for exact local optima."]
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
    notes = [f"Published ratio: {PUBLISHED_RATIO}, from a start of 100. The paper does not name the data set."]
    title = "Steps to a local optimum, mean over 100 clients (Figure 12)"
    return Table(["data", "start", *tolerances, "last / first"], lines, title, notes)


def facts(seeds: int) -> list[str]:
    """Return what all curves have in common."""
    coin = f"{seeds} seed{'s' * (seeds > 1)} of the coin"
    return ["l2-regularised logistic regression, mu = 0.1", "8 clients", coin]


def panels(placed: Sequence[PlacedResult]) -> list[list[Panel]]:
    """Return the panels of all results so far."""
    return [*_convergence_panels(placed), *_step_panels(placed), *_inexact_panels(placed), *_iteration_panels(placed)]


def _convergence_panels(placed: Sequence[PlacedResult]) -> list[list[Panel]]:
    curves, rows = Curves(placed, "convergence"), []
    for data, split in curves.places():
        lines = {
            (f"{name}alpha {alpha}", n, dash): curves.at(data=data, split=split, alpha=alpha, method=method)
            for method, name, dash in (("scafflix", "", "solid"), ("gd", "GD, ", "dash"))
            for n, alpha in enumerate(curves.values("alpha"))
        }
        rows.append(_pair(f"{data}, {SPLITS[split]}", "Solid lines: Scafflix. Dashed lines: GD.", lines))
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
        rows.append(_pair(title, "Step sizes: 1/L_i (solid), 1/max L_i (dashed) and 1/mean L_i (dotted).", lines))
    return rows


def _inexact_panels(placed: Sequence[PlacedResult]) -> list[list[Panel]]:
    curves, rows = Curves(placed, "inexact"), []
    for data, alpha in dict.fromkeys((each.at["data"], each.at["alpha"]) for each in curves.placed):
        row = []
        for how, by_tolerance in (("by tolerance", True), ("by number of local steps", False)):
            lines = [
                Line(variant, range(len(curve["gap"])), [abs(gap) for gap in curve["gap"]], n)
                for n, variant in enumerate(
                    each for each in curves.values("variant") if each.startswith("eps") is by_tolerance
                )
                for curve in curves.at(data=data, alpha=alpha, variant=variant)
            ]
            title = f"{data}, inexact local optima, alpha = {alpha}, Figure {'4' if alpha == '0.1' else '13'}"
            caption = f"Inexact local optima, {how}. The chart shows the absolute value, as the gap can be negative."
            row.append(Panel(title, "|objective gap|", lines, caption))
        rows.append(row)
    return rows


def _iteration_panels(placed: Sequence[PlacedResult]) -> list[list[Panel]]:
    return [
        [
            Panel(
                f"{each.at['data']}, steps to a local optimum from {start}, Figure 12",
                "local steps",
                [
                    Line(f"eps {eps}", range(1, len(counts) + 1), counts, n)
                    for n, (eps, counts) in enumerate(by_tolerance.items())
                ],
                "100 clients, label-wise.",
                "client",
            )
            for start, by_tolerance in each.result.items()
        ]
        for each in Curves(placed, "iterations").placed
    ]


def _pair(title: str, caption: str, lines: Mapping[tuple[str, int, str], Sequence[Result]]) -> list[Panel]:
    """Return two panels, one with objective gaps and one with gradients. Only solid lines are in the legend."""
    kinds = (("gap", "objective gap"), ("gradient", "squared gradient norm"))
    return [
        Panel(title, axis, [_line(*look, curves, key) for look, curves in lines.items()], caption)
        for key, axis in kinds
    ]


def _line(name: str, color: int, dash: str, curves: Sequence[Result], key: str) -> Line:
    values = _mean(curves, key)
    return Line(name, range(len(values)), values, color, dash, dash == "solid")


def _mean(curves: Sequence[Result], key: str) -> list[float]:
    """Average curves over seeds, up to the end of the shortest one."""
    return [statistics.fmean(values) for values in zip(*(curve[key] for curve in curves), strict=False)]


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}" if value == round(value) else f"{value:.1f}"


def _ratio(gd: float | None, scafflix: float | None) -> str:
    return f"{gd / scafflix:.1f}" if gd and scafflix else DASH
