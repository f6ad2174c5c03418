"""The theorems of the Scafflix paper, compared with the method as it runs."""

from dataclasses import replace

import numpy as np
import pytest

import laboratory as lab
import reference as ref
from coterie.methods import FLIX, GD, Scafflix

NEWTON = {"optimum_solver": "newton", "optimum_tolerance": 1e-13}


def linear(tree, label=""):
    return lab.vector(tree, label, lab.LINEAR)


# -- the paper's logistic regression


class Mixed:
    """Solve (FLIX) for the f_i of the paper, with one weight vector each."""

    def __init__(self, problems: list[lab.Logistic], alpha: list[float]) -> None:
        self.problems, self.alpha = problems, alpha
        self.own = [f.minimum() for f in problems]
        v = np.zeros(len(self.own[0]))
        for _ in range(100):
            H = sum(a**2 * f.hessian(m) for f, a, m in zip(problems, alpha, self.models(v), strict=True))
            g = sum(a * f.gradient(m) for f, a, m in zip(problems, alpha, self.models(v), strict=True))
            v = v - np.linalg.solve(H, g)
        self.best, self.least = v, self.value(v)

    def models(self, v):
        return [a * v + (1 - a) * own for a, own in zip(self.alpha, self.own, strict=True)]

    def value(self, v) -> float:
        return float(np.mean([f.value(m) for f, m in zip(self.problems, self.models(v), strict=True)]))

    def gap(self, shared) -> float:
        return self.value(lab.one_vector(shared)) - self.least


def test_two_outputs_are_one_weight_vector_with_twice_mu():
    """Outputs ∓v/2 with 2 mu have equal f_i and half the step sizes, so the path is equal, also for gamma and p."""
    alpha = [0.9, 0.1, 0.4]
    given = {f"c{i}": each for i, each in enumerate(alpha)}
    setup, f = lab.logistic(Scafflix(alpha=given, gamma="1/L", p="optimal", mu=0.2, **NEWTON), 0.1)
    L = [each.L() for each in f]
    assert setup.method.p == pytest.approx(np.sqrt(0.1 / max(L)), rel=1e-12)
    rounds = [(ref.announced(setup, 3, index).steps, [0, 1, 2]) for index in range(1, 13)]
    own = [each.minimum() for each in f]
    gradients = [each.gradient for each in f]
    expected = lab.scafflix(gradients, np.ones(4), own, alpha, [1 / each for each in L], setup.method.p, rounds)
    *_, (_, shared, store) = lab.play(setup, 12)
    np.testing.assert_allclose(lab.one_vector(shared), expected.x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(shared["1.weight"].sum(0), 0, rtol=0, atol=1e-13)
    for i in range(3):
        np.testing.assert_allclose(lab.one_vector(store[i], "h") / 2, expected.h[i], rtol=0, atol=1e-11)
        model = setup.method.personal_params(setup.task, shared, store[i])
        data = setup.data(i, "train", 0)
        value = float(setup.task.loss(model, data)[0]) + 0.1 * sum(float((w**2).sum()) for w in model.values())
        mixed = alpha[i] * expected.x + (1 - alpha[i]) * own[i]
        assert value == pytest.approx(f[i].value(mixed), rel=1e-12)


def test_it_converges_to_the_limits_of_the_numbers():
    """The objective converges to 1e-14, x to x*, and each h_i to ∇f_i(x̃_i*)."""
    alpha = [0.9, 0.1, 0.4]
    given = {f"c{i}": each for i, each in enumerate(alpha)}
    setup, f = lab.logistic(Scafflix(alpha=given, gamma="1/L", p="optimal", mu=0.2, **NEWTON), 0.1)
    mixed = Mixed(f, alpha)
    *_, (_, shared, store) = lab.play(setup, 250)
    assert abs(mixed.gap(shared)) < 1e-14
    np.testing.assert_allclose(lab.one_vector(shared), mixed.best, rtol=0, atol=1e-7)
    for i, model in enumerate(mixed.models(mixed.best)):
        np.testing.assert_allclose(lab.one_vector(store[i], "h") / 2, f[i].gradient(model), rtol=0, atol=1e-7)
        assert np.abs(f[i].gradient(model)).max() > 1e-2


def test_double_acceleration():
    """More personal models need fewer rounds, and every alpha needs fewer than gradient descent (Figure 1)."""
    needed: dict[type, list[int]] = {FLIX: [], Scafflix: []}
    for method, coin in ((FLIX, {}), (Scafflix, {"p": "optimal"})):
        for alpha in (1.0, 0.3, 0.1):
            setup, f = lab.logistic(method(alpha=alpha, gamma="1/L", mu=0.2, **coin, **NEWTON), 0.1)
            mixed = Mixed(f, [alpha] * 3)
            gaps = (mixed.gap(shared) for _, shared, _ in lab.play(setup, 500))
            needed[method].append(next(index for index, gap in enumerate(gaps, 1) if gap < 1e-4))
    for counts in needed.values():
        assert counts[0] > counts[1] > counts[2]
    assert all(2 * ours < theirs for ours, theirs in zip(needed[Scafflix], needed[FLIX], strict=True)), needed


def test_an_inexact_optimum_costs_accuracy_of_the_models_not_convergence():
    """If any point replaces x_i*, then (FLIX) is solved for that point."""
    method = Scafflix(alpha=0.5, gamma="1/L", p=0.3, mu=0.2, optimum_rate="1/L", optimum_epochs=3)
    setup, f = lab.logistic(method, 0.1)
    mixed = Mixed(f, [0.5] * 3)
    *_, (_, shared, store) = lab.play(setup, 120)
    own = [lab.one_vector(store[i], "optimum") for i in range(3)]
    assert all(np.abs(each - best).max() > 0.05 for each, best in zip(own, mixed.own, strict=True))
    v = lab.one_vector(shared)
    g = [each.gradient(0.5 * v + 0.5 * point) for each, point in zip(f, own, strict=True)]
    np.testing.assert_allclose(sum(g), 0, rtol=0, atol=1e-6)


# -- Theorem 4, whose t counts iterations, which are local steps here


@pytest.mark.parametrize("batch_size", [0, 1])
def test_theorem_4(batch_size):
    """The mean of Ψ^t over seeds is below (1 - ζ)^t Ψ^0, plus the noise of minibatches if there are any."""
    alpha = [0.9, 0.3, 0.5]
    given = {str(i): each for i, each in enumerate(alpha)}
    method = Scafflix(alpha=given, gamma="1/L", p="optimal", mu=0.4, **NEWTON)
    setup, f = lab.least_squares(method, mu=0.1)
    own, gamma = [q.minimum() for q in f], [1 / np.linalg.eigvalsh(q.H)[-1] for q in f]
    best = lab.flix_solution(f, alpha)
    models = [a * best + (1 - a) * x for a, x in zip(alpha, own, strict=True)]
    gradients, noise = [q.gradient(model) for q, model in zip(f, models, strict=True)], 0.0
    if batch_size:  # as in the paper for batches of one example: A_i = 2 max_j L_ij, C_i from the examples
        A, C = [], []
        for i, model in enumerate(models):
            x, y = ref.examples(setup, i)
            x = np.column_stack([x, np.ones(len(x))])
            each = 2 * (x @ model - y)[:, None] * x + 0.4 * model
            A.append(2 * (2 * np.sum(x**2, 1).max() + 0.4))
            C.append(2 * np.mean(np.sum(each**2, 1)) - 2 * np.sum(gradients[i] ** 2))
        gamma = [1 / max(A)] * 3
        setup, _ = lab.least_squares(replace(method, gamma=gamma[0], batch_size=1), mu=0.1)
    p, zeta = setup.method.p, min(g * np.linalg.eigvalsh(q.H)[0] for q, g in zip(f, gamma, strict=True))
    assert p**2 == pytest.approx(zeta, rel=1e-12)
    if batch_size:
        noise = min(gamma) / zeta * np.mean([g * c for g, c in zip(gamma, C, strict=True)])
    wanted = (0, 4, 12, 30, 60)
    psi = np.array(
        [
            [
                lab.lyapunov(states, models, gradients, gamma, p)
                for states in lab.at_iterations(lab.seeded(setup, seed), wanted)
            ]
            for seed in range(12)
        ]
    )
    assert np.ptp(psi[:, 0]) == 0
    assert np.ptp(psi[:, 2]) > 0
    bounds = (1 - zeta) ** np.array(wanted) * psi[0, 0] + noise
    assert (psi.mean(0) <= bounds + 1e-15).all(), (psi.mean(0), bounds)
    if not batch_size:
        assert bounds[-1] < 1e-2 * psi[0, 0]


# -- Corollary 5


def rounds_to(method, kappa: float) -> int:
    """Return the number of rounds until the distance to x* is a tenth of the initial distance."""
    setup, f = lab.ill_conditioned(method, kappa)
    best = lab.flix_solution(f, [1.0, 1.0])
    start = np.linalg.norm(linear(setup.task.initial) - best)
    paths = lab.play(setup, 10**6)
    return next(rnd.index for rnd, shared, _ in paths if np.linalg.norm(linear(shared) - best) < start / 10)


def test_rounds_grow_like_the_square_root_of_the_condition_number():
    """This is for p = 1/sqrt(kappa). Rounds of gradient descent grow like the condition number itself."""
    kappas = [10, 100, 1000]
    ours = [rounds_to(Scafflix(alpha=1.0, gamma="1/L", p=kappa**-0.5), kappa) for kappa in kappas]
    theirs = [rounds_to(GD(gamma="1/L"), kappa) for kappa in kappas]
    exponents = [np.polyfit(np.log(kappas), np.log(counts), 1)[0] for counts in (ours, theirs)]
    np.testing.assert_allclose(exponents, [0.5, 1.0], atol=0.1, err_msg=f"{ours} {theirs}")
