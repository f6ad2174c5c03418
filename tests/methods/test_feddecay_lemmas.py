"""Lemmas 1 to 5 and equation 11 of the FedDecay paper, compared with the method as it runs.

Three of them do not hold as they are printed:

- Lemma 1 lacks a factor mu: (1 - eta_t) should be (1 - mu eta_t), as in the paper it is taken from. The printed one
  fails for mu < 1/2.
- Lemma 3 lacks a factor beta_0, which its proof has. The printed one fails for beta_0 > 1.
- Lemma 5, the variance of cohorts, is about equal weights only. Equation (11) is unbiased for any weights. By default
  FedDecay divides by the weights of the cohort instead, which is (11) for equal weights and biased for others.
"""

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch

import laboratory as lab
import reference as ref
from convex import Convex, after_a_round, convex, over_cohorts, rates
from coterie.methods import FedDecay
from coterie.models.logreg import LogReg
from engines import game

FACTORS = (1.0, 0.75)


class Walk(NamedTuple):
    """The local steps of all clients in a round from a common model, for a given sequence of factors."""

    problem: Convex
    eta: np.ndarray
    """η_k of each step."""
    w: np.ndarray
    """w_k^i of each step k = 0, .., K and each client, (K + 1, M, features)."""

    @property
    def mean(self) -> np.ndarray:
        """Return the mean model after each step."""
        return np.tensordot(self.w, self.problem.p, (1, 0))

    @property
    def spread(self) -> np.ndarray:
        """Return Σ p_i |mean - w_k^i|² after each step."""
        return np.sum((self.w - self.mean[:, None]) ** 2, -1) @ np.array(self.problem.p)

    @property
    def G2(self) -> float:
        """Return the largest squared gradient on the way."""
        each = [(self.w[:, i] @ q.H - q.b) for i, q in enumerate(self.problem.problems)]
        return float(np.max(np.sum(np.array(each) ** 2, -1)))


def walk(problem: Convex, alpha: float, factors: list[float], begin: np.ndarray) -> Walk:
    """Let every client take its steps. A cohort of one client returns that client's model."""
    found = []
    for k in range(1, len(factors) + 1):
        found.append(over_cohorts(FedDecay(tau=k, eta=alpha, decay=factors), problem, begin, 1))
    return Walk(problem, alpha * np.array(factors), np.array([np.tile(begin, (4, 1)), *found]))


def distances(problem: Convex, path: np.ndarray) -> np.ndarray:
    return np.sum((path - problem.best) ** 2, -1)


@pytest.mark.parametrize("start", [0.0, 3.0])
@pytest.mark.parametrize("factors", [[1.0, 0.75, 0.5, 0.25], [1.0] * 4, [1.0, 0.0, 0.0, 0.0]])
@pytest.mark.parametrize("p", [(0.25,) * 4, (0.1, 0.2, 0.3, 0.4)])
def test_lemma_1_with_full_gradients(p, factors, start):
    """The mean of the clients' models comes closer to the optimum in every step, up to their spread and Γ."""
    problem = convex()._replace(p=list(p))
    mu, L = problem.mu_and_L
    run = walk(problem, 1 / (4 * L), factors, np.full(4, start))
    before, after = (distances(problem, run.mean)[places] for places in (slice(None, -1), slice(1, None)))
    noise = 2 * run.spread[:-1] + 6 * L * run.eta**2 * problem.gamma()
    assert (after <= (1 - mu * run.eta) * before + noise).all()
    assert (run.spread[1:] > 0).all()


def test_lemma_1_needs_what_clients_disagree_on():
    """From the optimum the first step leads nowhere on average, but later ones lead away."""
    problem = convex()
    mu, L = problem.mu_and_L
    run = walk(problem, 1 / (4 * L), [1.0] * 4, problem.best)
    before, after = (distances(problem, run.mean)[places] for places in (slice(None, -1), slice(1, None)))
    assert after[0] < 1e-20
    assert (after[1:] > (1 - mu * run.eta[1:]) * before[1:]).all()
    assert (after <= (1 - mu * run.eta) * before + 2 * run.spread[:-1] + 6 * L * run.eta**2 * problem.gamma()).all()


def test_lemma_1_lacks_a_factor_mu():
    """One client with mu = L = 0.2 and the rate 1, which is below 1/(4 L), keeps 0.8 of its way, not nothing."""
    problem, left = after_a_round([0.2], [1.0], eta=1.0)
    squared = 2 * left / 0.2
    assert squared == pytest.approx(0.64, rel=1e-12)
    assert problem.gamma() == pytest.approx(0, abs=1e-15)
    assert 1 - 1.0 < squared < 1 - 0.2


def first_steps(problem: Convex, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the stochastic gradients (rounds, M, features) of one example at a common model, and their σ_i²."""
    setup = ref.setup(FedDecay(tau=1, eta=1.0, batch_size=1), problem.federation, LogReg())
    shared, drawn, variances = setup.task.shared_model(), [], []
    w = lab.vector(shared, names=lab.LINEAR)
    for index in range(1, rounds + 1):
        rnd = ref.announced(setup, 4, index)
        sent = [setup.method.local_update(setup.task, shared, {}, setup.data(i, "train", index), rnd) for i in range(4)]
        drawn.append([-lab.vector(each.tensors, names=lab.LINEAR) for each in sent])
    for i, q in enumerate(problem.problems):
        x, y = ref.examples(setup, i)
        A = np.column_stack([x, np.ones(len(x))])
        each = 2 * (A @ w - y)[:, None] * A
        np.testing.assert_allclose(each.mean(0), q.H @ w - q.b, rtol=1e-9)
        variances.append(np.sum((each - each.mean(0)) ** 2, -1).mean())
    return np.array(drawn), np.array(variances)


@pytest.mark.parametrize("p", [(0.25,) * 4, (0.1, 0.2, 0.3, 0.4)])
def test_lemmas_1_and_2_with_one_example_a_step(p):
    """Clients draw independently of each other, so their variances add up with p_i². Draws are those of 400 rounds."""
    problem = convex()._replace(p=list(p))
    mu, L = problem.mu_and_L
    drawn, variances = first_steps(problem, 400)
    g, mean = np.tensordot(drawn, p, (1, 0)), np.tensordot(drawn.mean(0), p, (0, 0))
    found, bound = np.sum((g - mean) ** 2, -1).mean(), np.array(p) ** 2 @ variances
    assert found == pytest.approx(bound, rel=0.1)
    assert found < 0.6 * np.array(p) @ variances  # one draw for all clients would give more
    w = lab.vector(ref.setup(FedDecay(), problem.federation, LogReg()).task.shared_model(), names=lab.LINEAR)
    eta = 1 / (4 * L)
    after, before = distances(problem, w - eta * g).mean(), distances(problem, w)
    assert after <= (1 - mu * eta) * before + eta**2 * bound + 6 * L * eta**2 * problem.gamma()


@pytest.mark.parametrize("factors", [[1.0, 0.75, 0.5, 0.25], [1.0] * 4, [0.5, 0.25], [10.0, 10.0, 5.0]])
def test_lemma_3(factors):
    """The spread of the clients' models is bounded by the last rate, with the factor β_0 of the proof."""
    K, last = len(factors), factors[-1]
    run = walk(convex(), 0.01, factors, np.full(4, 3.0))
    bound = run.eta**2 * run.G2 * ((K - 1) * factors[0] / last) ** 2
    assert (run.spread[:-1] <= bound).all()
    assert (run.spread[1:-1] > 0).all()


def test_lemma_3_lacks_a_factor_beta_0():
    """With both factors 10, what two clients in opposite directions are apart is a hundred times the printed bound."""
    run = walk(convex(), 1e-4, [10.0, 10.0], np.full(4, 3.0))
    printed = run.eta[1] ** 2 * run.G2 * (1 / 10.0) ** 2
    assert run.spread[1] > 3 * printed


# -- cohorts


def test_the_spread_of_cohorts_has_the_size_of_gradients():
    """Lemmas 4 and 5 hold over all cohorts of a round. D of (14) has no unit, so it cannot bound a squared step."""
    problem, r, M, w = convex(), 2, 4, np.full(4, 3.0)
    steps, _ = rates(*problem.mu_and_L, FACTORS)
    method = FedDecay(tau=2, beta=0.75, **steps)
    ends, (everyone,) = (over_cohorts(method, problem, w, each) for each in (r, M))
    np.testing.assert_allclose(ends.mean(0), everyone, rtol=1e-12)
    spread = np.sum((ends - everyone) ** 2, -1).mean()
    D, last_rate, G2 = (M - r) / (r * (M - 1)), steps["eta"] * FACTORS[-1], problem.steepest(w[None, None])
    assert last_rate**2 * D < spread < last_rate**2 * D * G2 * (2 / FACTORS[-1]) ** 2


@pytest.mark.parametrize("users", ["equal", "sizes"])
@pytest.mark.parametrize("r", [1, 2, 3, 4])
def test_equation_11_is_unbiased_for_any_weights_but_a_normalised_mean_only_for_equal_ones(users, r):
    """Play a round with every cohort S of r clients, and average. By hand (11) is (|C|/|S|) Σ_S p_i θ_i."""
    sizes, w = np.array([1, 2, 3, 6]), np.full(4, 3.0)
    p = sizes / sizes.sum() if users == "sizes" else np.full(4, 0.25)
    problem, method = convex(list(sizes)), FedDecay(tau=2, beta=0.75, eta=0.1, users=users)
    theta, (everyone,) = (over_cohorts(method, problem, w, each) for each in (1, 4))
    np.testing.assert_allclose(p @ theta, everyone, rtol=1e-12)
    cohorts = [list(S) for S in itertools.combinations(range(4), r)]
    by_11 = over_cohorts(replace(method, average="unbiased"), problem, w, r)
    np.testing.assert_allclose(by_11, [4 / r * p[S] @ theta[S] for S in cohorts], rtol=1e-12)
    np.testing.assert_allclose(by_11.mean(0), everyone, rtol=1e-12)
    ours = over_cohorts(method, problem, w, r)
    np.testing.assert_allclose(ours, [p[S] @ theta[S] / p[S].sum() for S in cohorts], rtol=1e-12)
    bias = np.linalg.norm(ours.mean(0) - everyone) / np.linalg.norm(everyone - w)
    if users == "equal" or r == 4:
        np.testing.assert_allclose(ours, by_11, rtol=1e-12)
        assert bias < 1e-12
    else:
        assert bias > 0.005


@pytest.mark.parametrize("users", ["equal", "sizes"])
def test_equation_11_is_unbiased_for_unequal_probabilities_if_they_are_told(users):
    """A client that takes part with probability Pr(i) counts p_i/Pr(i), of which p_i |C|/|S| is the case of equal ones.

    The empty cohort is left out: the sum would be zero, but a run keeps its model if nobody takes part.
    """
    chances, sizes, w = np.array([0.9, 0.5, 0.2, 0.7]), [1, 2, 3, 6], np.full(4, 3.0)
    p = np.array(sizes) / 12 if users == "sizes" else np.full(4, 0.25)
    problem, method = convex(sizes), FedDecay(tau=2, beta=0.75, eta=0.1, users=users, average="unbiased")
    setup = ref.setup(method, problem.federation, LogReg())
    shared = {"head.weight": torch.tensor(w[None, :-1]), "head.bias": torch.tensor(w[-1:])}
    one_by_one = over_cohorts(FedDecay(tau=2, beta=0.75, eta=0.1), problem, w, 1)
    mean = np.zeros(4)
    for S in (list(S) for r in range(1, 5) for S in itertools.combinations(range(4), r)):
        rnd = replace(ref.announced(setup, chances.sum()), chance=torch.from_numpy(chances[S]))
        end = lab.vector(ref.play(setup, shared, {}, ref.store(setup), S, rnd).shared, names=lab.LINEAR)
        np.testing.assert_allclose(end, (p / chances)[S] @ one_by_one[S], rtol=1e-12)
        mean += np.where(np.isin(range(4), S), chances, 1 - chances).prod() * end
    np.testing.assert_allclose(mean, p @ one_by_one, rtol=1e-12)


def test_equation_11_scales_the_model_with_the_sizes_of_the_cohort():
    """Without any step, the mean stays where it is, and (11) multiplies the model by (|C|/|S|) Σ_S p_i."""
    sizes, w = np.array([1, 2, 3, 6]), np.full(4, 3.0)
    still = FedDecay(tau=1, eta=0.0, users="sizes")
    problem, cohorts = convex(list(sizes)), itertools.combinations(sizes, 2)
    np.testing.assert_allclose(over_cohorts(still, problem, w, 2), np.tile(w, (6, 1)))
    scaled = over_cohorts(replace(still, average="unbiased"), problem, w, 2)
    np.testing.assert_allclose(scaled, [2 * sum(S) / 12 * w for S in cohorts], rtol=1e-12)


def test_buffers_move_by_the_mean_also_under_equation_11():
    """A running variance that was multiplied by the weights of a cohort could vanish."""
    setup = game("feddecay", "norm average", users="sizes", tau=1)
    plain, by_11 = (setup.having(replace(setup.method, average=each)) for each in ("cohort", "unbiased"))
    after = [
        ref.play(each, each.task.shared_model(), {}, ref.store(each), [0, 4], ref.announced(each, 2)).shared
        for each in (plain, by_11)
    ]
    for name in setup.task.buffers:
        torch.testing.assert_close(after[0][name], after[1][name])
    assert not torch.allclose(after[0]["fc.bias"], after[1]["fc.bias"])


@pytest.mark.parametrize(
    ("users", "average", "r", "stays"),
    [
        ("equal", "cohort", 2, True),
        ("sizes", "cohort", 4, True),
        ("sizes", "cohort", 2, False),
        ("sizes", "unbiased", 2, True),
    ],
)
def test_only_equal_clients_may_take_part_now_and_then_unless_the_sum_is_unbiased(users, average, r, stays):
    """From the minimum of F, a round of tiny steps should lead nowhere, on average over all cohorts."""
    sizes = (1, 2, 3, 6)
    problem = convex(sizes, [each / sum(sizes) for each in sizes] if users == "sizes" else [0.25] * 4)
    ends = over_cohorts(FedDecay(tau=2, beta=0.75, eta=1e-6, users=users, average=average), problem, problem.best, r)
    drift = np.linalg.norm(ends.mean(0) - problem.best) / 1e-6
    assert drift < 1e-4 if stays else drift > 0.1
