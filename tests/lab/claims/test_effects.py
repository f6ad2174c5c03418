"""Intervals, corrections and the rule by which a verdict follows from them."""

import numpy as np
import pytest
from scipy import stats

from coterie.errors import UserError
from coterie.lab.claims.declared import Compare
from coterie.lab.claims.effects import Effect, Found, Verdict, found
from coterie.lab.claims.statistics import Mean, holm, mean
from coterie.lab.claims.stored import Line, read_tables
from coterie.lab.papers.comparison import Row
from coterie.lab.papers.measured import Measured, Percentage

CLEAR, NOISE, BELOW = (2.0, 2.1, 1.9, 2.2), (2.0, -1.9, 0.5, -0.4), (-2.0, -2.1, -1.9, -2.2)


def test_the_interval_and_the_p_value_are_those_of_the_paired_t_test():
    a, b = np.array([80.1, 82.0, 79.5, 83.3, 81.0]), np.array([79.0, 81.5, 80.0, 81.0, 80.2])
    expected = stats.ttest_rel(a, b)
    found = mean(list(a - b))
    assert found.p(0.0) == pytest.approx(expected.pvalue)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_a_known_error_is_that_of_a_normal_distribution():
    assert Mean(1.96, 1.0, 0).p(0.0) == pytest.approx(0.05, abs=1e-4)
    assert Mean(0.0, 2.0, 0).interval() == pytest.approx((-3.92, 3.92), abs=1e-3)


@pytest.mark.parametrize(("n", "p"), [(2, 0.5), (5, 0.0625), (6, 0.03125)])
def test_equal_values_are_judged_by_their_sign(n, p):
    """Their spread says nothing: three equal values would otherwise be infinitely significant."""
    assert mean([0.5] * n).p(0.0) == p
    assert mean([0.5] * n).p(0.5) == 1.0


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def effects(*cells, error=None):
    return [Effect(str(n), values, error) for n, values in enumerate(cells)]


def judge(compare, cells, smaller=False):
    return Found(compare, cells, [], [each.n for each in cells]).verdict(smaller)


LEAD = Compare(folder="f", figure="x", at_least=0.0)
CLOSE = Compare(folder="f", figure="x", within=1.0)
COUNTED = Compare(folder="f", figure="x", at_least=1.0, counted="counted")


@pytest.mark.parametrize(
    ("compare", "cells", "full", "smaller"),
    [
        (LEAD, effects(CLEAR), "confirmed", "confirmed at smaller scale"),
        (LEAD, effects(CLEAR, NOISE), "not confirmed", "not confirmed"),
        (LEAD, effects(CLEAR, BELOW), "contradicted", "not confirmed"),
        (LEAD, effects([5.0], error=1.0), "confirmed at smaller scale", "confirmed at smaller scale"),
        (LEAD, effects([5.0]), "not confirmed", "not confirmed"),  # nothing is known about the error
        (LEAD, effects([-5.0], error=1.0), "not confirmed", "not confirmed"),
        (LEAD, effects(CLEAR, [5.0], error=1.0), "confirmed at smaller scale", "confirmed at smaller scale"),
        (CLOSE, effects([0.1, 0.2, 0.0, 0.1]), "confirmed", "confirmed at smaller scale"),
        (CLOSE, effects(NOISE), "not confirmed", "not confirmed"),
        (CLOSE, effects(CLEAR), "contradicted", "not confirmed"),
        (CLOSE, effects([0.9]), "confirmed at smaller scale", "confirmed at smaller scale"),
        (CLOSE, effects([1.1]), "not confirmed", "not confirmed"),
        (COUNTED, effects([2.0]), "confirmed", "confirmed at smaller scale"),
        (COUNTED, effects([2.0], [0.5]), "contradicted", "not confirmed"),
    ],
)
def test_the_rule(compare, cells, full, smaller):
    assert judge(compare, cells) is Verdict(full)
    assert judge(compare, cells, smaller=True) is Verdict(smaller)


def test_many_cells_are_corrected():
    """One of twelve cells is significant by itself, but not among the twelve."""
    lucky = Effect("", [2.5], 1.0)
    assert Found(LEAD, [lucky], [], [1]).judged() == [True]
    assert Found(LEAD, [lucky, *[Effect("", [0.0], 1.0)] * 11], [], [1] * 12).judged() == [None] * 12


class Stored:
    """Results with given lines."""

    def __init__(self, lines, seeds=1):
        self.given, self.number = lines, seeds

    def lines(self, folder, best_rate):
        return self.given

    def seeds(self, folder):
        return self.number


def line(method, figures, printed=None, **at):
    runs = [Measured(Percentage(mean, 0.5), None, None, None, None, 1.0, 1.0) for mean in figures.values()]
    place = {"method": method, **at}
    return Line(place, Row(place, "adapted", printed and Percentage(printed, 0.2), None, runs, "", seeds=list(figures)))


def test_runs_are_paired_by_seed():
    lines = [line("a", {0: 80.0, 1: 90.0, 2: 70.0}), line("b", {1: 85.0, 2: 69.0, 3: 10.0})]
    compare = Compare(folder="f", figure="figure.mean", of={"method": "a"}, over={"method": "b"}, at_least=0.0)
    (effect,) = found(compare, Stored(lines)).effects
    assert sorted(effect.values) == [1.0, 5.0]


def test_one_seed_has_the_error_over_clients_of_both_lines():
    lines = [line("a", {0: 80.0}), line("b", {0: 79.0})]
    compare = Compare(folder="f", figure="figure.mean", of={"method": "a"}, over={"method": "b"}, at_least=0.0)
    (effect,) = found(compare, Stored(lines)).effects
    assert (effect.values, effect.error, effect.interval) == ([1.0], pytest.approx(0.5 * 2**0.5), None)


def test_a_line_is_compared_with_what_is_printed():
    compare = Compare(folder="f", figure="figure.mean", other="printed", match=["method"], within=1.0)
    effect = found(compare, Stored([line("a", {0: 80.0, 1: 82.0}, printed=80.5)])).effects[0]
    assert (effect.label, effect.values) == ("a", [-0.5, 1.5])


def test_lines_match_on_axes_and_are_told_apart_by_the_others():
    lines = [line(method, {0: 1.0, 1: 2.0}, data=data) for data in ("x", "y") for method in ("a", "b", "c")]
    compare = Compare(
        folder="f", figure="figure.mean", of={"method": "a"}, over={"method": ["b", "c"]}, match=["data"], at_least=0.0
    )
    labels = [effect.label for effect in found(compare, Stored(lines)).effects]
    assert labels == ["x against b", "x against c", "y against b", "y against c"]


def test_a_pool_has_its_cells_as_the_sample_and_still_one_seed():
    lines = [line(method, {0: value}, data=data) for method, value, data in (("a", 3.0, "x"), ("b", 1.0, "x"))]
    lines += [line("a", {0: 5.0}, data="y"), line("b", {0: 2.0}, data="y")]
    compare = Compare(
        folder="f",
        figure="figure.mean",
        of={"method": "a"},
        over={"method": "b"},
        match=["data"],
        at_least=0.0,
        pool="sets",
    )
    pooled = found(compare, Stored(lines))
    assert [(effect.label, effect.values) for effect in pooled.effects] == [("2 sets", [2.0, 3.0])]
    assert pooled.single


def test_errors_in_a_table_are_over_its_seeds():
    """GD needs 200 rounds and Scafflix 50 ± 5 over ten coins: a factor of 4 ± 0.4."""
    (cells,) = read_tables(
        "**title**\n\n| alpha | GD | S | 1/p |\n| --- | ---: | ---: | ---: |\n| 1 | 200 | 50 ± 5 | 2 |\n"
    )
    compare = Compare(folder="f", figure="GD", other="S", per="1/p", form="ratio", match=["alpha"], at_least=1.0)
    (effect,) = found(compare, Stored([Line(cells)], seeds=10)).effects
    assert (effect.label, effect.value, effect.n) == ("alpha 1", 2.0, 10)
    half = stats.t(9).ppf(0.975) * 0.2
    assert effect.interval == pytest.approx((2.0 - half, 2.0 + half))


def test_a_comparison_of_nothing_is_an_error():
    compare = Compare(folder="f", figure="figure.mean", of={"method": "z"}, over={"method": "a"}, at_least=0.0)
    with pytest.raises(UserError, match="results/f has no lines with"):
        found(compare, Stored([line("a", {0: 1.0})]))


def test_seeds_in_common_are_required():
    compare = Compare(folder="f", figure="figure.mean", of={"method": "a"}, over={"method": "b"}, at_least=0.0)
    with pytest.raises(UserError, match="no seed in common"):
        found(compare, Stored([line("a", {0: 1.0}), line("b", {1: 1.0})]))


def test_labels_name_the_axes_on_which_lines_differ():
    lines = [
        line("a", {0: 1.0}, rate="0.5", beta=beta, unit=unit) for beta, unit in (("0.2", "step"), ("0.8", "epoch"))
    ]
    lines.append(line("b", {0: 1.0}, rate="0.1", beta="1.0", unit="none"))
    compare = Compare(folder="f", figure="figure.mean", of={"method": "a"}, over={"method": "b"}, at_least=0.0)
    assert [each.label for each in found(compare, Stored(lines)).effects] == ["beta 0.2 step", "beta 0.8 epoch"]
