"""Options of Scafflix: where it starts, step sizes from the data of each client, and independent minibatches."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import laboratory as lab
import reference as ref
from coterie import registry
from coterie.core.counting import CountFlops
from coterie.core.steps.convex import curvature
from coterie.core.steps.sampling import draws, expected_smoothness
from coterie.core.steps.smoothness import hessian_norm, secant
from coterie.core.tree import pick
from coterie.errors import UserError
from coterie.measure.cost import local_work
from coterie.methods import IScaffnew, Scafflix
from engines import assert_same_rounds, game

ALPHA = {"0": 0.9, "1": 0.01, "2": 0.4}
SHARES = list(ALPHA.values())
NEWTON = {"optimum_solver": "newton", "optimum_tolerance": 1e-13}


def exact(**options):
    return Scafflix(alpha=ALPHA, p=0.4, mu=0.1, **NEWTON, **options)


def linear(tree, label=""):
    return lab.vector(tree, label, lab.LINEAR)


def by_hand(f, x, own, gamma, p, steps, first):
    """Play rounds of everyone as the paper writes them. `first` is how they start. Returns (x, h)."""
    h = [np.zeros_like(x) for _ in f]
    for index, count in enumerate(steps, 1):
        models = [own[i] if first == "optimum" and index == 1 else x for i in range(len(f))]
        for i, alpha in enumerate(SHARES):
            for _ in range(count):
                g = f[i].gradient(alpha * models[i] + (1 - alpha) * own[i])
                models[i] = models[i] - gamma[i] / alpha * (g - h[i])
        c = [alpha**2 / each for alpha, each in zip(SHARES, gamma, strict=True)]
        x = sum(w * model for w, model in zip(c, models, strict=True)) / sum(c)
        pace = 1 if first == "gradient" and index == 1 else p
        h = [h[i] + pace * alpha / gamma[i] * (x - models[i]) for i, alpha in enumerate(SHARES)]
    return x, h


# -- where it starts


@pytest.mark.parametrize("start", ["zero", "gradient", "optimum"])
def test_rounds_by_hand(start):
    setup, f = lab.uneven(exact(gamma="1/L", start=start))
    steps = [ref.announced(setup, 3, index).steps for index in range(1, 6)]
    assert steps[0] == 1 or start != "gradient"
    gamma = [1 / np.linalg.eigvalsh(q.H)[-1] for q in f]
    x, own = linear(setup.task.initial), [q.minimum() for q in f]
    x, h = by_hand(f, x, own, gamma, 0.4, steps, start)
    *_, (_, shared, store) = lab.play(setup, 5)
    np.testing.assert_allclose(linear(shared), x, rtol=0, atol=1e-11)
    for i in range(3):
        np.testing.assert_allclose(linear(store[i], "h"), h[i], rtol=0, atol=1e-11)
    np.testing.assert_allclose(sum(a * own for a, own in zip(SHARES, h, strict=True)), 0, rtol=0, atol=1e-12)


def test_the_first_round_of_gradients_projects_them_onto_the_admissible_ones():
    """h_i is the closest to ∇f_i(x̃_i) in the norm of Ψ for which Σ α_i h_i = 0, and x takes a step of descent."""
    setup, f = lab.uneven(exact(gamma="1/L", start="gradient"))
    gamma = [1 / np.linalg.eigvalsh(q.H)[-1] for q in f]
    x, own = linear(setup.task.initial), [q.minimum() for q in f]
    g = [q.gradient(a * x + (1 - a) * best) for q, a, best in zip(f, SHARES, own, strict=True)]
    # minimize Σ γ_i ||h_i - g_i||² with Σ α_i h_i = 0, by its linear system
    d, n = len(x), 3
    system = np.zeros(((n + 1) * d, (n + 1) * d))
    right = np.zeros((n + 1) * d)
    for i in range(n):
        here = slice(i * d, (i + 1) * d)
        system[here, here], right[here] = gamma[i] * np.eye(d), gamma[i] * g[i]
        system[here, n * d :] = system[n * d :, here] = SHARES[i] * np.eye(d)
    closest = np.linalg.solve(system, right)[: n * d].reshape(n, d)
    *_, (_, shared, store) = lab.play(setup, 1)
    for i in range(n):
        np.testing.assert_allclose(linear(store[i], "h"), closest[i], rtol=0, atol=1e-12)
    slope = sum(a * each for a, each in zip(SHARES, g, strict=True))
    expected = x - slope / sum(a**2 / each for a, each in zip(SHARES, gamma, strict=True))
    np.testing.assert_allclose(linear(shared), expected, rtol=0, atol=1e-12)


def psi(setup, f, states, p):
    """Return the Lyapunov function Ψ of equation 3, for the models and control variates of all clients."""
    own, gamma = [q.minimum() for q in f], [1 / np.linalg.eigvalsh(q.H)[-1] for q in f]
    alpha = [setup.method.alpha] * 3
    best = lab.flix_solution(f, alpha)
    total = 0.0
    for q, (x, h), a, x_i, g in zip(f, states, alpha, own, gamma, strict=True):
        goal = a * best + (1 - a) * x_i
        total += np.sum((x - goal) ** 2) / g + g * np.sum((h - q.gradient(goal)) ** 2) / p**2
    return min(gamma) * total / 3


def states(setup, rounds):
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    for _, after, kept in lab.play(setup, rounds):
        shared, store = after, kept
    model = setup.method.personal_params
    return [(linear(model(setup.task, shared, store[i])), linear(store[i], "h")) for i in range(3)]


def test_psi_is_below_the_bound_of_the_paper_and_falls_with_alpha_squared():
    found = []
    for alpha in (1.0, 0.1):
        setup, f = lab.uneven(Scafflix(alpha=alpha, gamma="1/L", p=0.2, mu=0.1, start="gradient", **NEWTON))
        L = [np.linalg.eigvalsh(q.H)[-1] for q in f]
        away = np.sum((linear(setup.task.initial) - lab.flix_solution(f, [alpha] * 3)) ** 2)
        bound = min(1 / np.array(L)) / 3 * away * sum(alpha**2 * (each + each / 0.2**2) for each in L)
        found.append((psi(setup, f, states(setup, 1), 0.2), bound))
    (one, bound), (small, its_bound) = found
    assert 0 < one < bound
    assert 0 < small < its_bound
    assert small < 0.05 * one


def test_psi_near_the_solution_is_small_with_gradients_only():
    """With h_i = 0 the distance to the gradients at the solution remains; it shrinks with the distance of the start."""
    after = {}
    for start in ("zero", "gradient"):
        method = Scafflix(alpha=0.5, gamma="1/L", p=0.2, mu=0.1, start=start, **NEWTON)
        setup, f = lab.uneven(method)
        best = torch.as_tensor(lab.flix_solution(f, [0.5] * 3) + 1e-4)
        near = {"head.weight": best[None, :-1], "head.bias": best[-1:]}
        setup.task.initial.update(near)
        after[start] = psi(setup, f, states(setup, start == "gradient"), 0.2)
    assert after["gradient"] < 1e-4 * after["zero"]


def test_psi_of_clients_that_start_from_their_optima():
    """The models start at x_i*, as far from the solution as α_i (x_i* - x*): nothing moves before the first average."""
    method = Scafflix(alpha=0.5, gamma="1/L", p=0.2, mu=0.1, start="optimum", **NEWTON)
    setup, f = lab.uneven(method)
    rnd, shared, store = ref.announced(setup, 3), setup.task.shared_model(), ref.store(setup)
    for i in range(3):
        reply = setup.method.local_update(setup.task, shared, store[i], setup.data(i, "train", 1), rnd)
        np.testing.assert_allclose(linear(pick(reply.personal, lab.LINEAR)), f[i].minimum(), rtol=0, atol=1e-11)
    *_, (_, shared, _) = lab.play(setup, 1)
    c = [np.linalg.eigvalsh(q.H)[-1] for q in f]
    mean = sum(w * q.minimum() for w, q in zip(c, f, strict=True)) / sum(c)
    np.testing.assert_allclose(linear(shared), mean, rtol=0, atol=1e-11)


@pytest.mark.parametrize("start", ["gradient", "optimum"])
def test_wherever_it_starts_it_ends_at_the_solution(start):
    setup, f = lab.least_squares(exact(gamma="1/L", start=start))
    *_, (_, shared, _) = lab.play(setup, 300)
    np.testing.assert_allclose(linear(shared), lab.flix_solution(f, SHARES), rtol=0, atol=1e-9)


def test_clients_outside_the_first_cohort_start_with_zero():
    setup, _ = lab.least_squares(exact(gamma=0.1, start="gradient"))
    *_, (_, _, store) = lab.play(setup, 1, lambda _: [0, 2])
    h = [linear(store[i], "h") for i in range(3)]
    assert not h[1].any()
    np.testing.assert_allclose(SHARES[0] * h[0] + SHARES[2] * h[2], 0, rtol=0, atol=1e-14)


# -- step sizes from the data


def test_the_hessian_gives_each_client_of_a_net_its_own_step():
    setup = ref.setup(Scafflix(alpha=0.3, gamma="1/hessian", mu=0.1, optimum_rate=0.2, optimum_epochs=6))
    store, x, f = ref.store(setup), lab.vector(setup.task.initial), lab.net_gradients(setup, 0.1)
    found = []
    for i in range(4):
        own = x
        for _ in range(6):
            own = own - 0.2 * f[i](own)
        here, width = 0.3 * x + 0.7 * own, 1e-5
        H = np.array([(f[i](here + width * e) - f[i](here - width * e)) / (2 * width) for e in np.eye(len(x))])
        found.append(float(store[i][".gamma"]))
        assert found[-1] == pytest.approx(1 / np.abs(np.linalg.eigvalsh((H + H.T) / 2)).max(), rel=1e-3)
    assert len(set(found)) == 4


@pytest.mark.parametrize("cls", [IScaffnew, Scafflix])
def test_for_quadratic_objectives_the_hessian_gives_the_step_of_theory(cls):
    after = []
    for gamma in ("1/hessian", "1/L"):
        setup, _ = lab.uneven(cls(gamma=gamma, p=0.4, mu=0.1))
        *_, (_, shared, _) = lab.play(setup, 4)
        after.append(linear(shared))
    np.testing.assert_allclose(*after, rtol=0, atol=1e-4)


def test_adaptive_steps_by_hand():
    """A client of a net raises its estimate to what it sees along its way, and uses it from the next round on."""
    method = Scafflix(alpha=0.5, gamma="adaptive", p=0.3, optimum_epochs=3)
    setup = ref.setup(method)
    store, shared = ref.store(setup), setup.method.init_shared(setup.task)
    f, raised = lab.net_gradients(setup), 0
    L = [1 / float(store[i][".gamma"]) for i in range(4)]
    for i in range(4):
        start = setup.method.personal_params(setup.task, shared, store[i])
        assert L[i] == pytest.approx(hessian_norm(setup.task, start, setup.data(i, "train", 0), 0.0), rel=1e-6)
    for index in range(1, 9):
        rnd = ref.announced(setup, 4, index)
        for i in range(4):
            start = setup.method.personal_params(setup.task, shared, store[i])
            reply = setup.method.local_update(setup.task, shared, store[i], setup.data(i, "train", index), rnd)
            assert float(reply.numbers["inverse_step"]) == pytest.approx(0.25 * L[i], rel=1e-9)
            x, y = lab.vector(start), lab.vector(reply.personal)
            seen = np.linalg.norm(f[i](y) - f[i](x)) / np.linalg.norm(y - x)
            raised += seen > L[i]
            L[i] = max(L[i], seen)
        shared = ref.play(setup, shared, {}, store, [0, 1, 2, 3], rnd).shared
        for i in range(4):
            assert 1 / float(store[i][".gamma"]) == pytest.approx(L[i], rel=1e-9)
        h = [0.5 * lab.vector(store[i], "h") for i in range(4)]
        np.testing.assert_allclose(sum(h), 0, rtol=0, atol=1e-12)
    assert raised


def test_adaptive_steps_of_quadratic_objectives_are_those_of_theory():
    after = []
    for gamma in ("adaptive", "1/L"):
        setup, _ = lab.uneven(exact(gamma=gamma))
        *_, (_, shared, store) = lab.play(setup, 6)
        after.append(np.append(linear(shared), [float(store[i][".gamma"]) for i in range(3)]))
    np.testing.assert_allclose(*after, rtol=1e-3, atol=1e-4)


def test_adaptive_steps_stay_above_those_of_theory():
    """For logistic regression no estimate exceeds L_i, so the step sizes stay at least 1/L_i, and x converges."""
    setup, f = lab.logistic(Scafflix(alpha=0.5, gamma="adaptive", p=0.3, mu=0.2, **NEWTON), 0.1)
    *_, (_, shared, store) = lab.play(setup, 200)
    bounds = [1 / curvature(setup.task, setup.data(i, "train", 0), 0.2).L for i in range(3)]
    assert all(float(store[i][".gamma"]) >= bounds[i] * (1 - 1e-9) for i in range(3))
    own = [each.minimum() for each in f]
    g = [each.gradient(0.5 * lab.one_vector(shared) + 0.5 * best) for each, best in zip(f, own, strict=True)]
    np.testing.assert_allclose(sum(g), 0, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("gamma", "fields"), [("1/hessian", {}), ("adaptive", {}), ("1/A", {"batch_size": 2})])
def test_step_sizes_of_nets_have_no_best_p(gamma, fields):
    with pytest.raises(UserError, match=r"needs step sizes from theory|linear models only"):
        ref.setup(Scafflix(gamma=gamma, p="optimal", **fields))


# -- minibatches, and Corollary 6


def batches(**options):
    return exact(batch_size=2, sampling="independent", **options)


def test_rounds_of_independent_minibatches_by_hand():
    setup, f = lab.uneven(batches(gamma=0.05))
    x, own, h = linear(setup.task.initial), [q.minimum() for q in f], [np.zeros(5)] * 3
    for index in range(1, 5):
        models, steps = [x] * 3, ref.announced(setup, 3, index).steps
        for i, alpha in enumerate(SHARES):
            for batch in draws(steps, setup.data(i, "train", index), 2):
                A, y = np.column_stack([batch.x.numpy(), np.ones(2)]), batch.y.numpy()
                model = alpha * models[i] + (1 - alpha) * own[i]
                g = 2 * A.T @ (A @ model - y) / 2 + 0.1 * model
                models[i] = models[i] - 0.05 / alpha * (g - h[i])
        x = sum(a**2 * model for a, model in zip(SHARES, models, strict=True)) / sum(a**2 for a in SHARES)
        h = [h[i] + 0.4 * a / 0.05 * (x - models[i]) for i, a in enumerate(SHARES)]
    *_, (_, shared, _) = lab.play(setup, 4)
    np.testing.assert_allclose(linear(shared), x, rtol=0, atol=1e-12)


def test_independent_minibatches_of_everything_are_everything():
    after = []
    for sampling, size in (("shuffle", 0), ("independent", 0), ("independent", 12), ("independent", 3)):
        method = exact(gamma=0.05, batch_size=size, sampling=sampling)
        *_, (_, shared, _) = lab.play(lab.least_squares(method)[0], 3)
        after.append(linear(shared))
    np.testing.assert_allclose(after[0], after[1], rtol=0, atol=1e-14)
    np.testing.assert_allclose(after[0], after[2], rtol=0, atol=1e-14)
    assert not np.allclose(after[0], after[3])


@pytest.mark.parametrize(("batch", "epsilon"), [(0, 0.1), (2, 0.0), (2, 1e-3), (2, 1e9)])
def test_step_sizes_and_p_of_corollary_6(batch, epsilon):
    method = Scafflix(gamma="1/A", p="optimal", mu=0.2, batch_size=batch, epsilon=epsilon, **NEWTON)
    setup, f = lab.uneven(method)
    mu = [np.linalg.eigvalsh(q.H)[0] for q in f]
    gamma = []
    for i in range(3):
        A, C = expected_smoothness(setup.task, setup.task.initial, setup.data(i, "train", 0), 0.2, batch)
        gamma.append(min(1 / A, epsilon * min(mu) / (2 * C)) if C and epsilon else 1 / A)
    found = [float(ref.store(setup)[i][".gamma"]) for i in range(3)]
    np.testing.assert_allclose(found, gamma, rtol=1e-9)
    expected = np.sqrt(min(g * m for g, m in zip(gamma, mu, strict=True)))
    assert setup.method.p == pytest.approx(expected, rel=1e-9)
    assert setup.method.mu_min == pytest.approx(min(mu), rel=1e-9)
    if batch == 0:
        np.testing.assert_allclose(gamma, [1 / np.linalg.eigvalsh(q.H)[-1] for q in f], rtol=1e-9)


def test_a_number_for_p_needs_no_calibration_unless_epsilon_is_to_be_reached():
    assert Scafflix(gamma="1/A", p=0.3).is_calibrated
    assert Scafflix(gamma="1/A", p=0.3, epsilon=0.1, mu_min=0.2).is_calibrated
    assert not Scafflix(gamma="1/A", p=0.3, epsilon=0.1).is_calibrated
    assert Scafflix(gamma="1/L", p=0.3, epsilon=0.1).is_calibrated
    setup, f = lab.uneven(Scafflix(gamma="1/A", p=0.3, epsilon=0.1, batch_size=2, mu=0.1))
    assert setup.method.p == 0.3
    assert setup.method.mu_min == pytest.approx(min(np.linalg.eigvalsh(q.H)[0] for q in f), rel=1e-9)


# -- engines and cost


@pytest.mark.parametrize(
    "options", [{"sampling": "independent"}, {"gamma": "adaptive"}, {"start": "optimum"}, {"start": "gradient"}]
)
def test_minibatches_on_the_batched_engine(options):
    setup = game("scafflix", batch=2, **options)
    vmap = registry.load("engine", "vmap")()
    assert_same_rounds(setup, vmap, [[0, 1, 2, 3, 4, 5], [4, 2]], 1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": "adaptive"},
        {"gamma": "adaptive", "batch_size": 3},
        {"sampling": "independent", "batch_size": 3},
        {"sampling": "independent", "batch_size": 3, "gamma": "adaptive"},
    ],
)
def test_the_declared_cost_is_the_counted_cost(options):
    setup = ref.setup(Scafflix(p=0.2, optimum_epochs=2, **options))
    rnd, shared = replace(ref.announced(setup, 2), steps=7), setup.method.init_shared(setup.task)
    for client in range(3):
        size = int(setup.federation.sizes()[client])
        personal, data = ref.store(setup)[client], setup.data(client, "train", 1)
        with CountFlops() as counted:
            setup.method.local_update(setup.task, shared, personal, data, rnd)
        cost = local_work(setup.method, setup.load.work.probe, [(size, setup.load.num_outputs(client))], rnd)
        assert cost.flops == pytest.approx(counted.total, rel=1e-12)


def test_the_secant_is_taken_on_all_examples():
    setup = ref.setup(Scafflix(alpha=0.5, gamma="adaptive", p=0.3, batch_size=2, optimum_epochs=3))
    store, shared, rnd = ref.store(setup), setup.method.init_shared(setup.task), ref.announced(setup, 4)
    data, start = setup.data(2, "train", 1), setup.method.personal_params(setup.task, shared, store[2])
    reply = setup.method.local_update(setup.task, shared, store[2], data, rnd)
    after = pick(reply.personal, setup.task.params)
    seen = max(float(store[2][".smoothness"]), float(secant(setup.task, start, after, data, 0.0)))
    assert float(reply.personal[".smoothness"]) == pytest.approx(seen, rel=1e-12)
