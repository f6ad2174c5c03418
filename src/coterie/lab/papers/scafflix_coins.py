"""Rounds that Scafflix needs on convex problems, averaged over several coins.

Scafflix aggregates after a local step with probability p, so the number of rounds depends on the coin. A single curve,
as in the figures of the paper, says little about the factor by which Scafflix saves rounds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from coterie.lab.papers import scafflix_figures as figures
from coterie.lab.papers.laboratory import Measurement, Result
from coterie.lab.papers.scafflix_convex import ALPHAS, ScafflixConvex
from coterie.lab.papers.users import seed_mean
from coterie.report.tables import Table
from coterie.report.units import DASH


@dataclass
class ScafflixCoins(ScafflixConvex):
    """Scafflix, Figures 1 and 9 to 11 over several coins (--seeds): rounds of GD and mean rounds of Scafflix."""

    def _of(self, data: str) -> Iterator[Measurement]:
        for split, alpha in product(figures.SPLITS, ALPHAS):
            yield self._descent("convergence", data, split, "gd", alpha, "", {})
            yield from self._scafflix("convergence", data, split, alpha, "")

    def result(self, measurement: Measurement, should_stop: Callable[[], bool]) -> Result:
        """Measure a curve, and p = sqrt(min mu / L_i)."""
        problems = self._dealt(measurement.recipe).problems
        L = [float(np.linalg.eigvalsh(f.hessian(np.zeros(f.A.shape[1])))[-1]) for f in problems]
        return {**super().result(measurement, should_stop), "p": math.sqrt(problems[0].mu / max(L))}

    def tables(self, results: Mapping[str, Result]) -> list[Table]:
        return [over_coins(self._placed(results))]


def over_coins(placed: Sequence[figures.PlacedResult]) -> Table:
    """Return a table of the rounds of GD and of the mean rounds of Scafflix, to a gap and to a share of the first."""
    curves, lines = figures.Curves(placed, "convergence"), []
    for data, split in curves.places():
        for alpha in curves.values("alpha"):
            at = {"data": data, "split": split, "alpha": alpha}
            gd, coins = curves.at(**at, method="gd"), curves.at(**at, method="scafflix")
            if gd and coins:
                to_gap, to_share = (_compared(gd[0], coins, share) for share in (False, True))
                lines.append([data, split, alpha, f"{1 / coins[0]['p']:.1f}", *to_gap, *to_share])
    headings = ["GD", "Scafflix", "coins", "ratio"]
    shared = [f"{heading} to share" for heading in headings if heading != "coins"]
    title = f"Rounds to a gap of {figures.GAP:g}, and to {figures.SHARE:g} of the first gap, over several coins"
    notes = [
        "Scafflix: mean over coins ± standard error. Coins: fewest and most rounds of a coin. Ratio: rounds of GD, "
        "divided by the mean rounds of Scafflix.",
        *figures.claims(figures.entries(curves)),
    ]
    return Table(["data", "split", "alpha", "1/p", *headings, *shared], lines, title, notes)


def _compared(gd: Result, coins: Sequence[Result], share: bool) -> list[str]:
    """Return rounds of GD, mean rounds of Scafflix, their range (to the gap only) and the ratio, or dashes."""
    most = figures.mean_rounds([gd], share)
    found = [figures.mean_rounds([each], share) for each in coins]
    rounds = [each for each in found if each is not None]
    mean = seed_mean(rounds)
    if most is None or mean is None or len(rounds) < len(found):
        return [DASH] * (3 if share else 4)
    error = "" if mean.stderr is None else f" ± {mean.stderr:.1f}"
    extent = [] if share else [f"{min(rounds):.0f} to {max(rounds):.0f}"]
    return [f"{most:.0f}", f"{mean.mean:.1f}{error}", *extent, f"{most / mean.mean:.1f}"]
