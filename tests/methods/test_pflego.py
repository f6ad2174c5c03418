"""PFLEGO against its paper: a round by hand in NumPy, and identities that hold exactly."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie import train
from coterie.clients.engine import Cohort
from coterie.clients.fused import Fused
from coterie.clients.loop import Loop
from coterie.methods import PFLEGO
from coterie.models.mlp import MLP
from coterie.models.module import Own
from coterie.streams import torch_seeded


def play(setup, cohort, r, shared=None, memory=None, store=None, chances=None):
    shared = setup.method.init_shared(setup.task) if shared is None else shared
    memory = setup.method.init_memory(setup.task, shared) if memory is None else memory
    store = store or ref.store(setup)
    rnd = replace(ref.announced(setup, r), chance=chances)
    return ref.play(setup, shared, memory, store, cohort, rnd), store


def by_hand(setup, theta, heads, cohort, r):
    """Run Algorithm 1. Returns (sum over the cohort of (I/r) alpha_i g_i, new heads of the cohort)."""
    method = setup.method
    sizes = setup.federation.sizes()[setup.federation.existing]
    num_clients, N = len(sizes), sizes.sum()

    def gradient_of(params, x, y):
        _, gradient = ref.loss_and_gradient(params, x, y)
        return {**gradient, **{name: gradient[name] + method.mu * params[name] for name in ref.HEAD}}

    total, after = {name: np.zeros_like(theta[name]) for name in ref.BODY}, {}
    among = N if method.alpha == "all" else sizes[cohort].sum()
    aggregation = (1 if method.alpha == "normalized" else num_clients / r) / among
    for i in cohort:
        x, y = ref.examples(setup, i)
        params = {**theta, **heads[i]}
        for _ in range(method.tau - 1):
            params = ref.step(params, gradient_of(params, x, y), method.beta, ref.HEAD)
        gradient = gradient_of(params, x, y)
        alpha = sizes[i] / N
        scale = alpha if method.head_step == "exact" else 1.0
        params = ref.step(params, gradient, method.rho * num_clients / r * scale, ref.HEAD)
        after[i] = {name: params[name] for name in ref.HEAD}
        for name in ref.BODY:
            total[name] += aggregation * sizes[i] * gradient[name]
    return total, after


@pytest.mark.parametrize("head_step", ["algorithm1", "exact"])
@pytest.mark.parametrize("tau", [1, 4])
def test_a_round_by_hand(tau, head_step):
    setup = ref.setup(PFLEGO(tau=tau, beta=0.3, rho=0.2, server="sgd", head_step=head_step))
    theta = ref.arrays(setup.task.shared_body())
    heads = {i: ref.arrays(ref.store(setup)[i]) for i in range(4)}
    assert [len(head["head.bias"]) for head in heads.values()] == [3, 2, 3, 1]  # heads of different size
    total, after = by_hand(setup, theta, heads, cohort := [0, 1, 3], r=3)
    played, store = play(setup, cohort, r=3)
    ref.assert_same(played.shared, ref.step(theta, total, 0.2, ref.BODY))
    for i in cohort:
        ref.assert_same(store[i], after[i])
    ref.assert_same(store[2], heads[2])


@pytest.mark.parametrize(
    "options", [{"alpha": "cohort"}, {"alpha": "normalized"}, {"mu": 0.7}, {"mu": 0.7, "head_step": "exact"}]
)
@pytest.mark.parametrize("tau", [1, 4])
def test_a_round_with_other_weights_and_with_a_penalty_by_hand(tau, options):
    setup = ref.setup(PFLEGO(tau=tau, beta=0.3, rho=0.2, server="sgd", **options))
    theta = ref.arrays(setup.task.shared_body())
    heads = {i: ref.arrays(ref.store(setup)[i]) for i in range(4)}
    total, after = by_hand(setup, theta, heads, cohort := [0, 1, 3], r=3)
    played, store = play(setup, cohort, r=3)
    ref.assert_same(played.shared, ref.step(theta, total, 0.2, ref.BODY))
    for i in cohort:
        ref.assert_same(store[i], after[i])


def test_two_rounds_with_adam_by_hand():
    setup = ref.setup(PFLEGO(tau=3, beta=0.3, rho=0.05))
    theta = ref.arrays(setup.task.shared_body())
    heads = {i: ref.arrays(ref.store(setup)[i]) for i in range(4)}
    m = v = {name: np.zeros_like(theta[name]) for name in ref.BODY}
    played, store = None, None
    for t, cohort in enumerate(([0, 2], [1, 2]), start=1):
        total, after = by_hand(setup, theta, heads, cohort, r=2)
        m = {name: 0.9 * m[name] + 0.1 * total[name] for name in m}
        v = {name: 0.999 * v[name] + 0.001 * total[name] ** 2 for name in v}
        for name in ref.BODY:
            step = (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.999**t)) + 1e-8)
            theta[name] = theta[name] - 0.05 * step
        heads |= after
        before = (None, None) if played is None else (played.shared, played.memory)
        played, store = play(setup, cohort, 2, *before, store)
    ref.assert_same(played.shared, theta)
    for i in range(3):
        ref.assert_same(store[i], heads[i])


def full_gradient(setup):
    """Return the gradient of objective (1) over theta and over each head."""
    sizes = setup.federation.sizes()
    theta, total, heads = ref.arrays(setup.task.shared_body()), None, []
    for i, alpha in enumerate(sizes / sizes.sum()):
        _, gradient = ref.loss_and_gradient({**theta, **ref.arrays(ref.store(setup)[i])}, *ref.examples(setup, i))
        part = {name: alpha * gradient[name] for name in ref.BODY}
        total = part if total is None else {name: total[name] + part[name] for name in total}
        heads.append({name: alpha * gradient[name] for name in ref.HEAD})
    return total, heads


def stochastic_gradient(setup, cohort, r, chances=None):
    """Return the gradient that the last step of a round follows, over theta and over each head."""
    rho = setup.method.rho
    theta = setup.task.shared_body()
    played, store = play(setup, list(cohort), r, chances=chances)
    moved = {name: (theta[name] - played.shared[name]).numpy() / rho for name in ref.BODY}
    heads = []
    for i in range(4):
        before = ref.store(setup)[i]
        heads.append({name: (before[name] - store[i][name]).numpy() / rho for name in ref.HEAD})
    return moved, heads


def assert_unbiased(setup, draws):
    """Check that steps are right on average. `draws` has (probability, cohort, r) of each possible cohort."""
    theta, heads = full_gradient(setup)
    mean = {name: np.zeros_like(value) for name, value in theta.items()}
    mean_heads = [{name: np.zeros_like(value) for name, value in head.items()} for head in heads]
    for probability, cohort, r, *chances in draws:
        moved, moved_heads = stochastic_gradient(setup, cohort, r, *chances)
        for name in ref.BODY:
            mean[name] += probability * moved[name]
        for head, change in zip(mean_heads, moved_heads, strict=True):
            for name in ref.HEAD:
                head[name] += probability * change[name]
    for name in ref.BODY:
        np.testing.assert_allclose(mean[name], theta[name], atol=1e-12)
    for mine, expected in zip(mean_heads, heads, strict=True):
        for name in ref.HEAD:
            np.testing.assert_allclose(mine[name], expected[name], atol=1e-12)


def exact_sgd():
    return ref.setup(PFLEGO(tau=1, rho=0.5, server="sgd", head_step="exact"))


@pytest.mark.parametrize("r", [1, 2, 3, 4])
def test_proposition_1_fixed_participation(r):
    subsets = list(combinations(range(4), r))
    assert_unbiased(exact_sgd(), [(1 / len(subsets), subset, r) for subset in subsets])


@pytest.mark.parametrize("pi", [0.25, 0.7])
def test_proposition_1_independent_participation(pi):
    draws = [
        (pi ** len(subset) * (1 - pi) ** (4 - len(subset)), subset, 4 * pi)
        for r in range(5)
        for subset in combinations(range(4), r)
    ]
    assert sum(probability for probability, *_ in draws) == pytest.approx(1)
    assert_unbiased(exact_sgd(), draws)


PI = np.array([0.2, 0.9, 0.5, 1.0])
"""Probabilities of four clients."""


def unequal_draws(corrected):
    """Return (probability, cohort, r, chances of its clients) of all cohorts. Uncorrected, chances are not told."""
    for r in range(5):
        for cohort in combinations(range(4), r):
            takes = np.isin(range(4), cohort)
            told = torch.from_numpy(PI[list(cohort)]) if corrected else None
            yield np.where(takes, PI, 1 - PI).prod(), cohort, PI.sum(), told


def test_with_unequal_probabilities_the_gradient_is_unbiased_if_it_is_corrected():
    """Section 3.2.2 has the factor 1/Pr(i), which is I/r only if all clients take part equally often."""
    assert sum(probability for probability, *_ in unequal_draws(True)) == pytest.approx(1)
    assert_unbiased(exact_sgd(), unequal_draws(True))
    with pytest.raises(AssertionError):
        assert_unbiased(exact_sgd(), unequal_draws(False))


def test_equal_probabilities_of_each_client_are_case_a():
    """With the same probability for all clients, the correction is I/r."""
    plain, told = exact_sgd(), torch.full((3,), 0.6, dtype=torch.float64)
    theta, heads = stochastic_gradient(plain, (0, 2, 3), 4 * 0.6)
    corrected, others = stochastic_gradient(plain, (0, 2, 3), 4 * 0.6, told)
    for name in ref.BODY:
        np.testing.assert_allclose(theta[name], corrected[name], rtol=1e-12, atol=1e-14)
    for head, other in zip(heads, others, strict=True):
        for name in ref.HEAD:
            np.testing.assert_allclose(head[name], other[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["loop", "vmap", "fused"])
def test_a_run_with_unequal_probabilities_by_hand(kind):
    """Two rounds as `coterie.train` plays them: cohorts, weights and heads follow from the probabilities."""
    chances = {f"client-{i}": float(p) for i, p in enumerate(PI)}
    federation = ref.federation()
    run = train(
        federation,
        model=MLP(hidden=[3]),
        method=PFLEGO(tau=2, beta=0.3, rho=0.2, server="sgd"),
        participation="unequal",
        rounds=2,
        seed=3,
        dtype="float64",
        engine=kind,
        settings={"run": {"chances": chances}},
    )
    setup = ref.setup(run._work.method)
    theta = ref.arrays(setup.task.shared_body())
    heads = {i: ref.arrays(ref.store(setup)[i]) for i in range(4)}
    sizes = federation.sizes()
    for record in run.history:
        total = {name: np.zeros_like(value) for name, value in theta.items()}
        for i in (int(name[-1]) for name in record.cohort):
            x, y = ref.examples(setup, i)
            params = {**theta, **heads[i]}
            params = ref.step(params, ref.loss_and_gradient(params, x, y)[1], 0.3, ref.HEAD)
            _, gradient = ref.loss_and_gradient(params, x, y)
            params = ref.step(params, gradient, 0.2 / PI[i], ref.HEAD)
            heads[i] = {name: params[name] for name in ref.HEAD}
            for name in ref.BODY:
                total[name] += sizes[i] / sizes.sum() / PI[i] * gradient[name]
        theta = ref.step(theta, total, 0.2, ref.BODY)
    assert {len(record.cohort) for record in run.history} - {0, 4}
    ref.assert_same(run.shared, theta)
    for i in range(4):
        ref.assert_same(run.personal(f"client-{i}"), heads[i])


def test_proposition_1_uniform_range():
    draws = [
        (1 / 3 / len(list(combinations(range(4), r))), subset, r)
        for r in (2, 3, 4)
        for subset in combinations(range(4), r)
    ]
    assert_unbiased(exact_sgd(), draws)


def test_eq_3_as_printed_is_biased_in_the_heads():
    """Without alpha_i heads follow the client's own loss, not objective (1), so `head_step = "exact"` exists."""
    setup = ref.setup(PFLEGO(tau=1, rho=0.5, server="sgd", head_step="algorithm1"))
    _, heads = full_gradient(setup)
    _, moved = stochastic_gradient(setup, range(4), 4)
    sizes = setup.federation.sizes()
    for i, alpha in enumerate(sizes / sizes.sum()):
        np.testing.assert_allclose(alpha * moved[i]["head.weight"], heads[i]["head.weight"], atol=1e-12)
        if i != 3:  # client 3 has one class, so its gradient is zero either way
            assert not np.allclose(moved[i]["head.weight"], heads[i]["head.weight"])


def test_full_participation_is_gradient_descent_on_all_parameters_together():
    """Compare tau = 1, r = I, sgd, "exact" with autograd on objective (1), as one function of all parameters."""
    setup = exact_sgd()
    theta = {name: value.clone().requires_grad_() for name, value in setup.task.shared_body().items()}
    heads = [{name: value.clone().requires_grad_() for name, value in ref.store(setup)[i].items()} for i in range(4)]
    sizes = setup.federation.sizes()
    objective = torch.zeros((), dtype=torch.float64)
    for i, alpha in enumerate(sizes / sizes.sum()):
        x, y = (torch.from_numpy(array) for array in ref.examples(setup, i))
        hidden = torch.relu(x @ theta["body.1.weight"].T + theta["body.1.bias"])
        scores = hidden @ heads[i]["head.weight"].T + heads[i]["head.bias"]
        objective = objective + alpha * nn.functional.cross_entropy(scores, y)
    objective.backward()
    played, store = play(setup, [0, 1, 2, 3], r=4)
    ref.assert_same(played.shared, {name: (value - 0.5 * value.grad).detach().numpy() for name, value in theta.items()})
    for i, head in enumerate(heads):
        ref.assert_same(store[i], {name: (value - 0.5 * value.grad).detach().numpy() for name, value in head.items()})
    assert played.loss == pytest.approx(objective.item())


def test_the_same_with_a_convolutional_network():
    """Compare with passes through the module itself, with each client's head in its place."""
    with torch_seeded(0):
        layers = nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(27, 5)
    setup = ref.setup(exact_sgd().method, model=Own(net=nn.Sequential(*layers), head_name="4"))
    body = nn.Sequential(*layers[:4]).double()
    sizes, objective, heads = setup.federation.sizes(), torch.zeros((), dtype=torch.float64), []
    for i, alpha in enumerate(sizes / sizes.sum()):
        heads.append({name: value.clone().requires_grad_() for name, value in ref.store(setup)[i].items()})
        x, y = (torch.from_numpy(array) for array in ref.examples(setup, i))
        scores = body(x) @ heads[i]["4.weight"].T + heads[i]["4.bias"]
        objective = objective + alpha * nn.functional.cross_entropy(scores, y)
    objective.backward()
    played, store = play(setup, [0, 1, 2, 3], r=4)
    for name, value in body.named_parameters():
        torch.testing.assert_close(played.shared[name], (value - 0.5 * value.grad).detach(), rtol=0, atol=1e-12)
    for i, head in enumerate(heads):
        ref.assert_same(store[i], {name: (value - 0.5 * value.grad).detach().numpy() for name, value in head.items()})


@pytest.mark.parametrize("tau", [1, 7])
@pytest.mark.parametrize(("engine", "expected"), [(Loop(), 4), (Fused(), 1)])
def test_one_pass_through_the_body_each_way_whatever_tau(engine, expected, tau, monkeypatch):
    """The loop takes one pass per client, and fused takes one for the cohort, though sizes and heads differ."""
    setup = ref.setup(PFLEGO(tau=tau))
    forwards, backwards = [], []
    original = setup.task.body_vjp

    def counted(params, x):
        features, pull_back, buffers = original(params, x)
        return features, lambda gradient: backwards.append(1) or pull_back(gradient), buffers

    assert setup.load.work.probe.example_bytes > 0  # measured once, by passes that do not count here
    setup.task._body.register_forward_hook(lambda *_: forwards.append(1))
    monkeypatch.setattr(setup.task, "body_vjp", counted)
    monkeypatch.setattr("coterie.core.steps.dense_body.counts_declared_work", lambda: True)
    shared, cohort, rnd = setup.task.shared_body(), [0, 1, 2, 3], ref.announced(setup, 4)
    personal, weights = [ref.store(setup)[i] for i in cohort], setup.method.weights(torch.tensor([5.0, 3, 8, 1]), rnd)
    engine.local_updates(setup.load, Cohort(shared, cohort, personal, weights, rnd))
    assert (len(forwards), len(backwards)) == (expected, expected)


def mean_of_normalized_gradients(setup, r):
    """Return the mean, over all cohorts of r clients, of the gradient whose weights add up to one."""
    cohorts = list(combinations(range(4), r))
    steps = [stochastic_gradient(setup, cohort, r)[0] for cohort in cohorts]
    return {name: np.mean([step[name] for step in steps], axis=0) for name in ref.BODY}


@pytest.mark.parametrize("r", [1, 2, 3])
def test_weights_that_add_up_to_one_are_unbiased_for_clients_of_equal_size_only(r):
    method = PFLEGO(tau=1, rho=0.5, server="sgd", alpha="normalized")
    equal, unequal = (ref.setup(method, ref.federation(sizes)) for sizes in ((5, 5, 5, 5), (5, 3, 8, 1)))
    for setup, unbiased in ((equal, True), (unequal, False)):
        theta, mean = full_gradient(setup)[0], mean_of_normalized_gradients(setup, r)
        assert all(np.allclose(mean[name], theta[name], atol=1e-12) for name in ref.BODY) == unbiased


def test_the_weights_of_a_cohort_add_up_to_one_if_they_are_normalized():
    setup = ref.setup(PFLEGO(alpha="normalized"))
    weights = setup.method.weights(torch.tensor([5.0, 8.0]), ref.announced(setup, 2))
    torch.testing.assert_close(weights, torch.tensor([5 / 13, 8 / 13]))


def test_an_empty_cohort_changes_nothing():
    setup = ref.setup(PFLEGO())
    played, store = play(setup, [], r=0.5)
    ref.assert_same(played.shared, ref.arrays(setup.task.shared_body()), 0)
    assert all(torch.equal(value, ref.store(setup)[i][name]) for i in range(4) for name, value in store[i].items())


def test_heads_lag_behind_only_by_their_own_visits():
    """A client that was not drawn keeps its head exactly."""
    setup = ref.setup(PFLEGO(tau=2))
    _, store = play(setup, [0, 1], r=2)
    kept = ref.arrays(store[0])
    play(setup, [1, 2], r=2, store=store)
    ref.assert_same(store[0], kept, 0)


def test_adaptation_is_head_descent_at_the_current_body():
    setup = ref.setup(PFLEGO(beta=0.3))
    theta, head = setup.task.shared_body(), ref.store(setup)[0]
    params = ref.arrays({**theta, **head})
    x, y = ref.examples(setup, 0)
    for _ in range(5):
        params = ref.step(params, ref.loss_and_gradient(params, x, y)[1], 0.3, ref.HEAD)
    adapted = setup.method.adapt(setup.task, theta, head, setup.data(0, "train", 0), 5)
    ref.assert_same(adapted, {name: params[name] for name in ref.HEAD})
