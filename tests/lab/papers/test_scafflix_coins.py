"""`coterie reproduce scafflix-coins`: rounds of Scafflix, averaged over coins."""

from pathlib import Path

import numpy as np
import pytest
from test_scafflix_convex import FEW, by_hand, never, tiny  # noqa: F401 (a fixture)

from coterie.lab.papers import scafflix_figures as figures
from coterie.lab.papers.scafflix_coins import ScafflixCoins, over_coins


def coins(seeds=2, scale="small"):
    return ScafflixCoins("scafflix-coins", {}, scale, seeds, Path("here"), FEW)


def test_each_line_has_gd_once_and_scafflix_for_each_coin():
    found = [tuple(each.at.values()) for each in coins(3).chosen]
    assert len(found) == 5 * 5 * (1 + 3)
    assert {each[:2] for each in found} == {("convergence", "mushrooms")}
    assert [each[3:] for each in found[:4]] == [("gd", "1", "", "0"), *(("scafflix", "1", "", n) for n in "012")]
    assert {each.at["data"] for each in coins(scale="full").chosen} == {"mushrooms", "a6a", "w6a"}


def test_p_is_that_of_theory(tiny):  # noqa: F811
    work = coins()
    measurement = next(each for each in work.chosen if each.at["split"] == "iid" and each.at["method"] == "scafflix")
    found = work.result(measurement, never)
    assert found["p"] == pytest.approx(np.sqrt(0.1 / max(f.L() for f in by_hand(work._dealt(measurement.recipe)))))
    assert found["gap"][-1] <= 1e-8


def curve(method, alpha, seed, gaps):
    at = dict(zip(figures.AXES, ("convergence", "d", "iid", method, alpha, "", seed), strict=True))
    return figures.PlacedResult(at, {"gap": gaps, "steps": [*range(len(gaps))], "p": 0.4})


def test_the_mean_over_coins_and_not_the_luckiest():
    """GD takes six rounds, the coins one and three, so the mean is two, its error one and the ratio three."""
    slow, fast, middle = [1.0, *[0.1] * 5, 1e-8], [1.0, 1e-8], [1.0, 0.1, 0.1, 1e-8]
    placed = [curve("gd", "1", "0", slow), curve("scafflix", "1", "0", fast), curve("scafflix", "1", "1", middle)]
    (line,) = over_coins(placed).lines
    assert line == ["d", "iid", "1", "2.5", "6", "2.0 ± 1.0", "1 to 3", "3.0", "6", "2.0 ± 1.0", "3.0"]
    assert len(over_coins(placed).headings) == len(line)


def test_claims_compare_means_over_coins():
    """GD takes three rounds. The second coin takes five, so the mean is three, and one line does not hold."""
    gd, fast, slow = [1.0, 0.1, 0.1, 1e-8], [1.0, 1e-8], [1.0, *[0.1] * 4, 1e-8]
    placed = [curve("gd", "1", "0", gd), curve("scafflix", "1", "0", fast), curve("scafflix", "1", "1", slow)]
    assert any("It holds in 0 of 1 lines" in note for note in over_coins(placed).notes)
    assert any("It holds in 1 of 1 lines" in note for note in over_coins(placed[:2]).notes)


def test_a_coin_that_does_not_arrive_leaves_no_mean():
    placed = [curve("gd", "1", "0", [1.0, 1e-8]), curve("scafflix", "1", "0", [1.0, 1e-8])]
    (line,) = over_coins([*placed, curve("scafflix", "1", "1", [1.0, 1e-7])]).lines
    assert line == ["d", "iid", "1", "2.5", *["–"] * 4, "1", "1.0 ± 0.0", "1.0"]  # noqa: RUF001
    assert over_coins(placed).lines[0][5:8] == ["1.0", "1 to 1", "1.0"]
    assert over_coins(placed[:1]).lines == []
