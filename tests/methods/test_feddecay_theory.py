"""Equation 10, Table 1 and Theorem 1 of the FedDecay paper, compared with the methods as they run.

Theorem 1 does not hold as it is printed. Each of these gaps has a test below:

- The last term of (12) lacks a factor mu, which the proof loses when it takes 2/mu out of a bracket.
- D lacks the factor (G K beta_0 / beta_{K-1})², the spread of what clients send (Lemma 5 prints its inverse).
- beta_0 must be at most 1. Otherwise d must be 12 kappa beta_0 / beta_{K-1}, or the first steps are longer than
  1 / (4 L).
- Lemma 5, the variance of cohorts, is about equal weights only. Equation (11) is unbiased for any weights. FedDecay
  here divides by the weights of the cohort instead, which is (11) for equal weights and biased for others.

Assumption 4, bounded gradients, cannot hold everywhere together with strong convexity. It is needed along the path
only, so G is taken there. The start may be round 0, though the induction starts at step 1, because d is at least 12.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import laboratory as lab
import reference as ref
from coterie import Federation
from coterie.core.method import Method, Round, Update
from coterie.measure.summary import Summary
from coterie.methods import FOMAML, PFLEGO, FedAvg, FedDecay, FedSGD
from coterie.methods.feddecay import emphasis_limit
from coterie.models.logreg import LogReg
from coterie.models.module import Own
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.report.sections import protocol_sentence
from coterie.report.terminal import closing_table

# -- equation 10 and Table 1


def method_gradient(method: Method, index: int = 1) -> tuple[np.ndarray, lab.Quadratic, np.ndarray]:
    """Run one client of least squares. Returns (what it sends, divided by -eta; its f; where it started)."""
    setup, problems = lab.least_squares(method)
    shared, data = setup.task.shared_model(), setup.data(0, "train", index)
    sent = method.local_update(setup.task, shared, {}, data, ref.announced(setup, 1, index))
    return lab.vector(sent.tensors, names=lab.LINEAR) / -method.eta, problems[0], lab.vector(shared, names=lab.LINEAR)


def noted(method: Method) -> float | None:
    """Return the emphasis that a method notes in the first round, which does not depend on the update."""
    rnd = method.plan(Round(1, 4, 17, 4, 0))
    return method.notes(Update({}, {"undone": torch.zeros(())}, torch.ones(())), rnd).get("emphasis")


def coefficients(method: Method, K: int, index: int = 1) -> tuple[float, float]:
    """Return the coefficients of the gradient, and of -eta times the Hessian-gradient product.

    For a quadratic, what K steps send is a polynomial of degree K-1 in eta, which K different rates determine.
    """
    etas = np.linspace(0.02, 0.2, K)
    rows = [method_gradient(replace(method, eta=float(eta)), index) for eta in etas]
    _, f, start = rows[0]
    constant, linear = np.linalg.solve(np.vander(etas, increasing=True), np.array([sent for sent, _, _ in rows]))[:2]
    g = f.gradient(start)
    Hg = f.H @ g
    found = constant @ g / (g @ g), -linear @ Hg / (Hg @ Hg)
    np.testing.assert_allclose(constant, found[0] * g, rtol=1e-6)
    np.testing.assert_allclose(linear, -found[1] * Hg, rtol=1e-6, atol=1e-9)
    return found


@pytest.mark.parametrize(
    ("method", "K", "first", "second"),
    [
        (FedSGD(), 2, 1, 0),
        (FedAvg(tau=2), 2, 2, 1),
        (FedAvg(tau=4), 4, 4, 6),
        (FOMAML(tau=2), 2, 1, 1),
        (FOMAML(tau=4), 4, 1, 3),
        (FedDecay(tau=3, beta=0.5), 3, 1.75, 0.875),
        (FedDecay(tau=4, beta=0.6, decay="linear"), 4, 1.8, 0.92),
        (FedDecay(tau=4, decay=[1.0, 0.5, 0.25]), 4, 2, 1.3125),
        (FedDecay(tau=3, decay=[2.0, 1.0, 0.5]), 3, 3.5, 3.5),
        (FedDecay(tau=3, beta=0.5, unit="epoch", form="displacement"), 3, 1.75, 0.875),
    ],
    ids=str,
)
def test_the_two_coefficients_and_their_ratio(method, K, first, second):
    """By hand they are Σ β_j and Σ_j β_j Σ_{h<j} β_h. FOMAML sends the last gradient only."""
    assert coefficients(method, K) == pytest.approx((first, second), rel=1e-6, abs=1e-9)
    assert noted(method) == pytest.approx(method.eta * second / first, rel=1e-12)


def test_equation_10_is_about_different_minibatches():
    """Average over all ordered pairs of a client's three examples, as the method itself draws them."""
    rng, eta, beta = np.random.default_rng(4), 0.1, 0.7
    x, y = rng.normal(size=(3, 2)), rng.normal(size=3)
    federation = Federation.from_arrays({"c0": (x, y, x, y)}, regression=True)
    setup = ref.setup(FedDecay(tau=2, eta=eta, beta=beta, batch_size=1), federation, LogReg())
    shared, drawn = setup.task.shared_model(), {}
    for index in range(1, 60):
        data, rnd = setup.data(0, "train", index), ref.announced(setup, 1, index)
        sent = setup.method.local_update(setup.task, shared, {}, data, rnd)
        found = lab.vector(sent.tensors, names=lab.LINEAR)
        drawn[tuple(found.round(9))] = found / -eta
    assert len(drawn) == 6
    A, w = np.column_stack([x, np.ones(3)]), lab.vector(shared, names=lab.LINEAR)
    g, H = 2 * (A @ w - y)[:, None] * A, 2 * A[:, :, None] * A[:, None, :]
    inner = np.mean([H[k] @ g[h] for h, k in itertools.permutations(range(3), 2)], 0)
    np.testing.assert_allclose(np.mean(list(drawn.values()), 0), (1 + beta) * g.mean(0) - eta * beta * inner, rtol=1e-9)


def test_the_limits_in_beta_are_fedsgd_and_fedavg():
    eta, K = 0.3, 5
    ratios = [noted(FedDecay(tau=K, eta=eta, beta=beta)) for beta in (0, 1e-7, 0.2, 0.5, 0.9, 1 - 1e-7, 1)]
    assert ratios == sorted(ratios)
    assert ratios[0] == noted(FedSGD(eta=eta)) == 0
    assert ratios[1] == pytest.approx(1e-7 * eta, rel=1e-6)
    assert ratios[-2] == pytest.approx(ratios[-1], rel=1e-6)
    assert ratios[-1] == pytest.approx(noted(FedAvg(tau=K, eta=eta)), rel=1e-12)
    assert ratios[-1] == pytest.approx(noted(FOMAML(tau=K, eta=eta)) / 2, rel=1e-12)


def test_ever_more_steps():
    """The emphasis of FedAvg and FOMAML grows without bound; that of FedDecay and its coefficients do not."""
    assert [noted(FedAvg(tau=K, eta=0.1)) for K in (11, 101, 1001)] == pytest.approx([0.5, 5, 50])
    assert [noted(FOMAML(tau=K, eta=0.1)) for K in (11, 101, 1001)] == pytest.approx([1, 10, 100])
    assert noted(FedDecay(tau=60, eta=0.3, beta=0.5)) == pytest.approx(emphasis_limit(0.3, 0.5), rel=1e-12)
    (one, f, start), (other, _, _) = (method_gradient(FedDecay(tau=60, eta=eta, beta=0.5)) for eta in (1e-4, 2e-4))
    g = f.gradient(start)
    np.testing.assert_allclose(2 * one - other, 2 * g, rtol=1e-5)  # 1 / (1 - β)
    np.testing.assert_allclose((one - other) / 1e-4, 4 / 3 * f.H @ g, rtol=1e-3)  # β / ((1 + β) (1 - β)²)


def test_over_the_rounds_the_emphasis_shrinks_with_the_rate():
    """The paper calls it constant under the rates of Theorem 1. In fact its ratio to α_j is, and α_j falls like 1/j."""
    method, index = FedDecay(tau=3, eta_decay=0.5, beta=0.5), 7
    first, second = coefficients(method, 3, index)  # in terms of eta, though the rate of this round is eta / 4
    assert method.eta * second / first == pytest.approx(noted(method) / 4, rel=1e-6)


def test_where_nothing_is_known():
    """Nothing is noted for other methods, for epochs that differ between clients, or if nothing is sent."""
    assert noted(PFLEGO()) is None
    assert noted(FedDecay(unit="epoch", batch_size=8)) is None
    assert noted(FedDecay(decay=[0.0])) is None
    assert noted(FedDecay(eta=0.0)) == 0


def test_it_is_printed_where_it_is_known():
    facts = {"engine": "loop", "seed": 0, "rounds": 0, "protocol": "So and so."}
    for method, known, expected in (
        ("feddecay", 0.03751, True),
        ("fomaml", 0.03751, True),
        ("fedavg", 0.03751, False),  # which is not about it
        ("feddecay", None, False),
    ):
        summary = Summary.from_json({**facts, "method": method, "emphasis": known})
        assert ("Emphasis 0.0375 (" in str(closing_table(summary).caption)) is expected
        assert ("Emphasis 0.0375 (" in protocol_sentence(summary)) is expected


# -- Theorem 1


class Convex(NamedTuple):
    """The objective F = Σ p_i F_i."""

    federation: Federation
    problems: list[lab.Quadratic]
    p: Sequence[float]

    @property
    def F(self) -> lab.Quadratic:
        return lab.Quadratic(*(np.tensordot(self.p, parts, 1) for parts in zip(*self.problems, strict=True)))

    @property
    def best(self) -> np.ndarray:
        return self.F.minimum()

    @property
    def mu_and_L(self) -> tuple[float, float]:
        eigenvalues = np.linalg.eigvalsh([q.H for q in self.problems])
        return float(eigenvalues.min()), float(eigenvalues.max())

    def gap(self, path: np.ndarray) -> np.ndarray:
        away = path - self.best
        return np.sum(away @ self.F.H * away, -1) / 2

    def gamma(self) -> float:
        """Return Γ: how much worse the best common model is than the best model of each client."""
        apart = [self.best - q.minimum() for q in self.problems]
        return sum(p * x @ q.H @ x / 2 for p, q, x in zip(self.p, self.problems, apart, strict=True))

    def steepest(self, paths: np.ndarray) -> float:
        """Return G² at the start of rounds, averaged over paths. Full gradients with steps of at most 1/L lower it."""
        return float(max(np.sum((paths @ q.H - q.b) ** 2, -1).mean(0).max() for q in self.problems))


def convex(sizes: Sequence[int] = (1, 1, 1, 1), p: Sequence[float] = (0.25,) * 4) -> Convex:
    """Return least squares of clients that differ in curvature, directions and optima, with mu = 1.5 and L = 2."""
    rng, clients = np.random.default_rng(2), {}
    directions = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    for i, copies in enumerate(sizes):
        turn = np.linalg.qr(rng.normal(size=(3, 3))).Q
        x = directions * np.sqrt([0.75, 0.75 + i / 12, 1]) @ turn
        y = 2 * directions @ turn @ rng.normal(size=3) + 0.5 * rng.normal(size=4)
        x, y = np.tile(x, (copies, 1)), np.tile(y, copies)
        clients[f"c{i}"] = (x, y, x, y)
    federation = Federation.from_arrays(clients, regression=True)
    return Convex(federation, lab.quadratics(ref.setup(FedDecay(), federation, LogReg())), p)


def rates(mu: float, L: float, factors: Sequence[float]) -> tuple[dict[str, float], float]:
    """Return α_j = c / (j + d) of the theorem as settings of the method, and d."""
    d = max(12 * L / mu / factors[-1], 4 - 2 / len(factors))
    return {"eta": 3 / (mu * factors[-1]) / d, "eta_decay": 1 / d}, d


def played(method: Method, federation: Federation, r: int, seeds: int) -> np.ndarray:
    """Return the model before the first round and after each round, for each seed."""
    paths = []
    for seed in range(seeds):
        run = {"rounds": ROUNDS, "clients_per_round": r, "seed": seed, "eval_every": ROUNDS}
        recipe = Recipe.parse({"run": run, "engine": {"dtype": "float64", "kind": "loop" if r < 4 else "vmap"}})
        simulation = prepare(replace(recipe, method=method, model=LogReg()), federation).rounds
        states = itertools.chain([simulation.shared], (simulation.shared for _ in simulation.play()))
        paths.append([lab.vector(shared, names=lab.LINEAR) for shared in states])
    return np.array(paths)


def bounds(problem: Convex, factors: Sequence[float], N: np.ndarray, start: float, G2: float, r: int):
    """Yield the right side of (12), as printed and as proved. Gradients are full, so every sigma_i is 0."""
    K, M, (mu, L), last = len(factors), len(problem.problems), problem.mu_and_L, factors[-1]
    _, d = rates(mu, L, factors)
    B, D = 6 * L * problem.gamma() + 2 * G2 * ((K - 1) / last) ** 2, (M - r) / (r * (M - 1)) if M > 1 else 0.0
    for noise, unit in ((B + D, 1), (B + D * G2 * (K / last) ** 2, mu)):
        yield L / mu / (N + d - 2) * (9 * noise / (2 * mu * last**2) + unit * (1 / K + d - 2) / 2 * start)


FACTORS, ROUNDS, N = (1.0, 0.75), 128, np.arange(129)
"""Factors β_k = 0.75^k of two steps, number of rounds, and N of each state of a path."""


@pytest.mark.parametrize(("r", "seeds"), [(4, 1), (2, 8)])
def test_theorem_1(r, seeds):
    """With all clients and with cohorts, (N + d - 2) (F - F*) does not grow, and F - F* is below both bounds."""
    problem = convex()
    steps, d = rates(*problem.mu_and_L, FACTORS)
    paths = played(FedDecay(tau=2, beta=0.75, **steps), problem.federation, r, seeds)
    gap = problem.gap(paths).mean(0)
    start = np.sum((paths[:, 0] - problem.best) ** 2, -1).mean()
    for bound in bounds(problem, FACTORS, N, start, problem.steepest(paths), r):
        assert (gap <= bound).all()
    scaled = (N + d - 2) * gap
    early, middle, late = (scaled[half : 2 * half].mean() for half in (16, 32, 64))
    assert max(middle, late) < 1.4 * early
    assert gap[-1] < 0.2 * gap[0]
    if r < 4:  # the noise of cohorts does not fall faster
        assert late > 0.6 * early
    else:  # drift falls faster, like α_j²
        assert gap[128] / gap[64] == pytest.approx(((64 + d) / (128 + d)) ** 2, rel=0.1)


@pytest.mark.parametrize(("r", "seeds"), [(4, 1), (2, 4)])
def test_with_one_rate_for_all_rounds_it_is_not_so(r, seeds):
    problem = convex()
    steps, d = rates(*problem.mu_and_L, FACTORS)
    paths = played(FedDecay(tau=2, beta=0.75, eta=steps["eta"]), problem.federation, r, seeds)
    scaled = (N + d - 2) * problem.gap(paths).mean(0)
    assert scaled[64:].mean() > 2 * scaled[16:32].mean()


def after_a_round(curvatures: Sequence[float], start: Sequence[float], **options) -> tuple[Convex, float]:
    """Return (problem Σ λ_j w_j² / 2 of one client, loss of its model after one step)."""
    x = np.diag(np.sqrt(np.array(curvatures) * len(curvatures) / 2))
    clients = {"c0": (x, np.zeros(len(x)), x, np.zeros(len(x)))}
    net = nn.Sequential(nn.Flatten(), nn.Linear(len(x), 1, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([start]))
    federation = Federation.from_arrays(clients, regression=True)
    setup = ref.setup(FedDecay(tau=1, **options), federation, Own(net=net, head_name="1"))
    _, shared, _ = next(lab.play(setup, 1))
    problem = Convex(federation, [lab.Quadratic(np.diag(curvatures), np.zeros(len(x)))], [1.0])
    return problem, float(problem.gap(shared["1.weight"].numpy())[0])


@pytest.mark.parametrize("curvature", [2.0, 200.0])
def test_equation_12_lacks_a_factor_mu(curvature):
    """With one client and one step, d is 12 and the rate 1/(4 mu), so (3/4)² mu/2 is left, but 1/2 is allowed."""
    steps, d = rates(curvature, curvature, [1.0])
    assert d == 12
    problem, left = after_a_round([curvature], [1.0], **steps)
    assert left == pytest.approx(9 / 32 * curvature, rel=1e-12)
    printed, proved = bounds(problem, [1.0], np.array(1), 1.0, 0.0, 1)
    assert printed == pytest.approx(1 / 2)
    assert printed < left < proved


def test_the_first_factor_has_to_be_at_most_one():
    """With beta_0 = beta_{K-1} = 10 the printed d is 12, the first step is 2.5/L, and the model moves away.

    With d = 12 kappa beta_0 / beta_{K-1} it moves as with the factor 1.
    """
    steps, d = rates(1.0, 10.0, [10.0])
    assert d == 12
    problem, left = after_a_round([1.0, 10.0], [0.0, 1.0], decay=[10.0], **steps)
    assert left == pytest.approx(2.25 * 5, rel=1e-12)
    assert all(left > bound for bound in bounds(problem, [10.0], np.array(1), 1.0, 0.0, 1))
    steps, d = rates(1.0, 10.0, [1.0])
    assert d == 120
    _, left = after_a_round([1.0, 10.0], [0.0, 1.0], decay=[10.0], eta=steps["eta"] / 10, eta_decay=1 / d)
    assert all(left < bound for bound in bounds(problem, [1.0], np.array(1), 1.0, 0.0, 1))


def test_a_first_factor_below_one_needs_no_correction():
    """With beta_0 = 0.5 and the printed d, first steps are 1 / (8 L), and F - F* stays below both bounds."""
    problem, factors = convex(), [0.5, 0.375]
    steps, d = rates(*problem.mu_and_L, factors)
    assert d == pytest.approx(12 * 2 / 1.5 / 0.375)
    assert steps["eta"] * factors[0] == pytest.approx(1 / (8 * 2))
    paths = played(FedDecay(tau=2, decay=factors, **steps), problem.federation, 4, 1)
    start = np.sum((paths[:, 0] - problem.best) ** 2, -1).mean()
    for bound in bounds(problem, factors, N, start, problem.steepest(paths), 4):
        assert (problem.gap(paths).mean(0) <= bound).all()


def over_cohorts(method: Method, problem: Convex, w: np.ndarray, r: int) -> np.ndarray:
    """Return where a round from w leads, for each cohort of r clients."""
    setup = ref.setup(method, problem.federation, LogReg())
    shared = {"head.weight": torch.tensor(w[None, :-1]), "head.bias": torch.tensor(w[-1:])}
    cohorts = itertools.combinations(range(len(problem.problems)), r)
    ends = (ref.play(setup, shared, {}, ref.store(setup), list(S), ref.announced(setup, r)).shared for S in cohorts)
    return np.array([lab.vector(end, names=lab.LINEAR) for end in ends])


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
    """Average (|C|/|S|) Σ_S p_i θ_i, and the method's own mean over S, over all cohorts S of r clients."""
    sizes, w = np.array([1, 2, 3, 6]), np.full(4, 3.0)
    p = sizes / sizes.sum() if users == "sizes" else np.full(4, 0.25)
    problem, method = convex(list(sizes)), FedDecay(tau=2, beta=0.75, eta=0.1, users=users)
    theta, (everyone,) = (over_cohorts(method, problem, w, each) for each in (1, 4))
    np.testing.assert_allclose(p @ theta, everyone, rtol=1e-12)
    cohorts = [list(S) for S in itertools.combinations(range(4), r)]
    by_11 = np.array([4 / r * p[S] @ theta[S] for S in cohorts])
    np.testing.assert_allclose(by_11.mean(0), everyone, rtol=1e-12)
    ours = over_cohorts(method, problem, w, r)
    bias = np.linalg.norm(ours.mean(0) - everyone) / np.linalg.norm(everyone - w)
    if users == "equal" or r == 4:
        np.testing.assert_allclose(ours, by_11, rtol=1e-12)
        assert bias < 1e-12
    else:
        assert bias > 0.005


@pytest.mark.parametrize(("users", "r", "stays"), [("equal", 2, True), ("sizes", 4, True), ("sizes", 2, False)])
def test_only_equal_clients_may_take_part_now_and_then(users, r, stays):
    """From the minimum of F, a round of tiny steps should lead nowhere, on average over all cohorts."""
    sizes = (1, 2, 3, 6)
    problem = convex(sizes, [each / sum(sizes) for each in sizes] if users == "sizes" else [0.25] * 4)
    ends = over_cohorts(FedDecay(tau=2, beta=0.75, eta=1e-6, users=users), problem, problem.best, r)
    drift = np.linalg.norm(ends.mean(0) - problem.best) / 1e-6
    assert drift < 1e-4 if stays else drift > 0.1
