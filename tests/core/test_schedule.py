"""Schedules against their formulas, and what they refuse."""

import math

import pytest
import torch

from coterie.core.schedule import Place, schedule
from coterie.errors import UserError
from coterie.methods import FedDecay, FedPer

K = 5


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("none", [1, 1, 1, 1, 1]),
        ("exponential 0.5", [1, 0.5, 0.25, 0.125, 0.0625]),
        ("exponential 0", [1, 0, 0, 0, 0]),
        ("linear 0.7", [1, 0.7, 0.4, 0.1, 0]),
        ("cosine 0", [(1 + math.cos(math.pi * k / K)) / 2 for k in range(K)]),
        ("cosine 0.2", [0.6 + 0.4 * math.cos(math.pi * k / K) for k in range(K)]),
        ("cosine 1", [1, 1, 1, 1, 1]),
        ("polynomial 1", [1, 0.8, 0.6, 0.4, 0.2]),
        ("polynomial 2", [1, 0.64, 0.36, 0.16, 0.04]),
        ("step 0.5 every 2", [1, 1, 0.5, 0.5, 0.25]),
        ("inverse 0.5", [1, 1 / 1.5, 1 / 2, 1 / 2.5, 1 / 3]),
        ([1.0, 0.5], [1, 0.5, 0.5, 0.5, 0.5]),
    ],
)
def test_each_scheme_is_its_formula_for_plain_numbers_and_for_tensors(text, factors):
    factor = schedule(text)
    for steps in (K, torch.tensor(float(K), dtype=torch.float64)):
        found = [float(factor(Place(k, steps))) for k in range(K)]
        assert found == pytest.approx(factors, abs=1e-15)
    assert all(each > 0 for each in factors) or text in ("exponential 0", "linear 0.7")  # the theory needs it


def test_only_inverse_counts_on_through_the_rounds():
    """c / (t + d) with c = 3 and d = 2, at t = n K + k, is the rate 3/2 under the schedule "inverse 0.5"."""
    for index in (1, 2, 7):
        rates = [1.5 * schedule("inverse 0.5")(Place(k, K, index)) for k in range(K)]
        assert rates == pytest.approx([3 / (((index - 1) * K + k) + 2) for k in range(K)], rel=1e-14)
    for text in ("exponential 0.5", "linear 0.7", "cosine 0.1", "polynomial 2", "step 0.5 every 2"):
        assert schedule(text)(Place(3, K, 7)) == schedule(text)(Place(3, K, 1))


def test_a_step_beyond_the_round_has_a_finite_factor():
    """Clients with fewer steps are computed together with others; what they do there does not count, but is done."""
    for text in ("polynomial 0.5", "cosine 0.1", "inverse 1"):
        assert math.isfinite(schedule(text)(Place(9, torch.tensor(5.0))))


WRONG = """
cosine 2, exponential -0.1, exponential nan, polynomial 0, polynomial inf, inverse -1, step 0.5, step 0.5 every 0,
step 0.5 each 2, none 1, sawtooth 1, linear 0.5 0.5
"""


@pytest.mark.parametrize("wrong", ["", [], [-1.0], *(each.strip() for each in WRONG.split(","))])
def test_a_wrong_schedule_is_refused_with_examples_of_right_ones(wrong):
    for method in (FedPer, FedDecay):
        with pytest.raises(UserError, match="decay"):
            method(decay=wrong)


@pytest.mark.parametrize("wrong", ["sawtooth", "cosine"])
def test_a_number_is_required_where_there_is_no_beta(wrong):
    with pytest.raises(UserError, match=r'is not a schedule; examples are "none", "exponential 0.6"'):
        FedPer(decay=wrong)


def test_beta_is_the_number_of_a_scheme_without_one():
    for scheme in ("exponential", "linear", "cosine"):
        assert FedDecay(beta=0.3, decay=scheme).factors(4) == FedDecay(beta=0.9, decay=f"{scheme} 0.3").factors(4)
    with pytest.raises(UserError, match="polynomial"):
        FedDecay(decay="polynomial")
