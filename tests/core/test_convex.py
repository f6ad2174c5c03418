"""The curvature of a client's objective, and the search for its minimum."""

import numpy as np
import pytest
import torch

import laboratory as lab
import reference as ref
from coterie.core.counting import CountFlops, alike
from coterie.core.steps import convex
from coterie.core.steps.convex import Search, best_p, curvature, minimum
from coterie.errors import UserError
from coterie.methods import GD, FedAvg
from coterie.models.logreg import LogReg
from coterie.models.mlp import MLP


def data(setup, client=0):
    return setup.data(client, "train", 0)


def test_of_logistic_regression_it_is_the_hessian_where_all_scores_are_even():
    setup, f = lab.logistic(GD(), 0.1)
    for i in range(3):
        found = curvature(setup.task, data(setup, i), 0.2)
        spectrum = np.linalg.eigvalsh(f[i].hessian(np.zeros(4)))
        assert pytest.approx(2 * spectrum[-1], rel=1e-12) == found.L  # two outputs: twice that of one vector
        assert found.trace == pytest.approx(2 * ((f[i].A ** 2).sum() / (4 * len(f[i].b)) + 0.1), rel=1e-12)
        assert found.mu == 0.2


def test_of_three_classes_no_hessian_exceeds_it():
    setup = ref.setup(GD(), model=LogReg())
    found, rng = curvature(setup.task, data(setup), 0.3), np.random.default_rng(0)
    shapes = {name: value.shape for name, value in setup.task.initial.items()}
    largest = []
    for scale in (0.0, 1.0, 3.0):

        def f(weight, bias):
            return setup.task.loss({"head.weight": weight, "head.bias": bias}, data(setup))[0]

        at = tuple(torch.tensor(scale * rng.normal(size=shape)) for shape in shapes.values())
        blocks = torch.autograd.functional.hessian(f, at)
        sizes = [value.numel() for value in at]
        H = torch.cat([torch.cat([blocks[i][j].reshape(sizes[i], sizes[j]) for j in (0, 1)], 1) for i in (0, 1)])
        largest.append(float(torch.linalg.eigvalsh(H)[-1]) + 0.3)
    assert found.L / 5 < max(largest) < found.L < found.trace


def test_of_linear_regression_it_is_the_hessian():
    setup, f = lab.least_squares(GD(mu=0.3), mu=0.05, L=4.0)
    for i in range(3):
        found, spectrum = curvature(setup.task, data(setup, i), 0.3), np.linalg.eigvalsh(f[i].H)
        np.testing.assert_allclose([found.L, found.mu], [spectrum[-1], spectrum[0]], rtol=1e-12)
        assert pytest.approx(2 * 4.0 + 0.3) == found.L
        assert found.mu == pytest.approx(2 * 0.05 + 0.3)


def test_with_fewer_examples_than_features_some_direction_is_flat():
    setup = ref.setup(GD(), lab_regression(2, 5), LogReg())
    found = curvature(setup.task, data(setup), 0.0)
    x, _ = ref.examples(setup, 0)
    A = np.column_stack([x, np.ones(2)])
    assert found.mu == 0
    assert pytest.approx(np.linalg.eigvalsh(A.T @ A)[-1], rel=1e-12) == found.L


def lab_regression(size, features):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(size, features))
    return ref.Federation.from_arrays({"a": (x, x[:, 0], x, x[:, 0])}, regression=True)


def test_padding_does_not_count():
    setup, _ = lab.logistic(GD(), 0.1)
    whole, padded = data(setup), setup.load.gather([0, 1], "train", 0)
    first = type(padded)(*(part[0] for part in padded))
    assert len(first.y) > len(whole.y)
    assert curvature(setup.task, first, 0.2) == pytest.approx(curvature(setup.task, whole, 0.2), rel=1e-12)


def test_newton_reaches_the_limits_of_the_numbers():
    setup, f = lab.logistic(GD(), 0.1, start=100.0)
    for i in range(3):
        found, steps = minimum(setup.task, setup.task.initial, data(setup, i), 0.2, Search("newton", 0.1, 1e-12, 50))
        assert steps < 20
        np.testing.assert_allclose(lab.one_vector(found), f[i].minimum(), rtol=0, atol=1e-11)
        assert np.linalg.norm(f[i].gradient(lab.one_vector(found))) < 1e-12


def test_gradient_descent_stops_at_the_tolerance_and_counts_its_steps():
    """Start from 100, as in Figures 4 and 12. Over two outputs the gradient is sqrt(2) times that over one vector."""
    setup, f = lab.logistic(GD(), 0.1)
    L, counts = f[1].L(), []
    for epsilon in (1e-1, 1e-3, 1e-6):
        how = Search("gd", "1/L", np.sqrt(2) * epsilon, 10**4, start=100.0)
        found, steps = minimum(setup.task, setup.task.initial, data(setup, 1), 0.2, how)
        v, by_hand = 100 * np.ones(4), 0
        while np.linalg.norm(f[1].gradient(v)) > epsilon:
            v, by_hand = v - f[1].gradient(v) / L, by_hand + 1
        assert steps == by_hand
        np.testing.assert_allclose(lab.one_vector(found), v, rtol=0, atol=1e-11)
        counts.append(steps)
    assert counts == sorted(set(counts))


def test_so_many_epochs_at_the_most():
    setup, f = lab.logistic(GD(), 0.1)
    for epochs in (0, 1, 5):
        found, steps = minimum(setup.task, setup.task.initial, data(setup), 0.2, Search("gd", 0.1, 0.0, epochs))
        v = np.ones(4)
        for _ in range(epochs):
            v = v - 2 * 0.1 * f[0].gradient(v)
        assert steps == epochs
        np.testing.assert_allclose(lab.one_vector(found), v, rtol=0, atol=1e-13)


def test_minibatches_are_those_of_local_training():
    setup, _ = lab.logistic(FedAvg(eta=0.1, tau=6, batch_size=4), 0.0)
    found, steps = minimum(setup.task, setup.task.initial, data(setup), 0.0, Search("gd", 0.1, 1e9, 2, batch=4))
    assert steps == 6  # nine examples make three batches per epoch
    reply = setup.method.local_update(setup.task, setup.task.shared_model(), {}, data(setup), ref.announced(setup, 1))
    for name, moved in reply.tensors.items():
        torch.testing.assert_close(found[name] - setup.task.initial[name], moved, rtol=0, atol=1e-14)


def test_the_best_coin():
    assert best_p([0.25, 0.04]) == pytest.approx(0.2)
    assert best_p([4.0]) == 1
    with pytest.raises(UserError, match=r"set method.mu"):
        best_p([0.3, 0.0])


@pytest.mark.parametrize(
    ("model", "how"),
    [
        (LogReg(), Search("gd", 0.3, 1e-3, 40)),
        (LogReg(), Search("gd", 0.3, 0.0, 2, batch=3)),
        (LogReg(), Search("newton", 0.1, 1e-9, 50)),
        (MLP(hidden=[3]), Search("gd", 0.3, 0.0, 4)),
    ],
)
def test_what_the_search_costs_is_what_would_be_counted_step_by_step(monkeypatch, model, how):
    """Compare with counting each step, and for a linear model with autograd, which costs as much."""
    setup = ref.setup(GD(), model=model)
    start = setup.task.initial
    with CountFlops() as quick:
        found, steps = minimum(setup.task, start, data(setup), 0.2, how)
    monkeypatch.setattr(convex, "alike", lambda work: work)
    monkeypatch.setattr(setup.task, "head_is_linear", False)
    with CountFlops() as slow:
        plain, as_many = minimum(setup.task, start, data(setup), 0.2, how)
    assert steps == as_many > 1
    assert quick.total == slow.total > 0
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


def test_nothing_is_counted_twice_where_counters_are_nested():
    work = alike(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    with CountFlops() as outer:
        work()
        with CountFlops() as inner:
            work()
        work()
    assert inner.total == 48
    assert CountFlops.innermost is None
    assert outer.total == 144
