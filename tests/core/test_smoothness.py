"""Estimates of the smoothness of a client's objective, compared with dense Hessians and with gradients by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import laboratory as lab
import reference as ref
from coterie.core.counting import CountFlops
from coterie.core.steps import smoothness
from coterie.core.steps.convex import Search, curvature, minimum
from coterie.core.steps.smoothness import hessian_norm, secant
from coterie.core.tree import shift
from coterie.errors import UserError
from coterie.methods import GD, Scaffnew
from coterie.models.module import Own


def dense_hessian(gradient, at, width=1e-5):
    """Differentiate a gradient by central differences."""
    rows = [(gradient(at + width * e) - gradient(at - width * e)) / (2 * width) for e in np.eye(len(at))]
    return (np.array(rows) + np.array(rows).T) / 2


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_of_a_net_it_is_the_largest_eigenvalue_of_the_hessian_where_it_starts(mu):
    setup = ref.setup(GD())
    gradients, x = lab.net_gradients(setup, mu), lab.vector(setup.task.initial)
    for i in range(4):
        expected = np.abs(np.linalg.eigvalsh(dense_hessian(gradients[i], x))).max()
        found = hessian_norm(setup.task, setup.task.initial, setup.data(i, "train", 0), mu)
        assert found == pytest.approx(expected, rel=1e-3)


def test_of_quadratic_objectives_it_is_L():
    setup, f = lab.uneven(GD(mu=0.2))
    for i in range(3):
        found = hessian_norm(setup.task, setup.task.initial, setup.data(i, "train", 0), 0.2)
        assert found == pytest.approx(np.linalg.eigvalsh(f[i].H)[-1], rel=1e-4)


def test_negative_curvature_counts_by_its_absolute_value():
    """Between two minima that are mirror images of each other, the loss has a maximum."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for value in net.parameters():
            value.fill_(0.1)
    x = np.ones((2, 1))
    setup = ref.setup(
        GD(),
        ref.Federation.from_arrays({"a": (x, np.ones(2), x, np.ones(2))}, regression=True),
        Own(net=net, head_name="1"),
    )
    w = 0.1  # f(u, v) = (uv - 1)²: second derivatives 2v², 2u² and 4uv - 2
    H = np.array([[2 * w**2, 4 * w**2 - 2], [4 * w**2 - 2, 2 * w**2]])
    eigenvalues = np.linalg.eigvalsh(H)
    assert -eigenvalues[0] == pytest.approx(1.94)
    found = hessian_norm(setup.task, setup.task.initial, setup.data(0, "train", 0), 0.0)
    assert found == pytest.approx(np.abs(eigenvalues).max(), rel=1e-3)


def test_dropout_is_the_same_in_all_products():
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 5))
    setup = ref.setup(GD(), model=Own(net=net, head_name="2"))
    one, other = (hessian_norm(setup.task, setup.task.initial, setup.data(0, "train", 0), 0.0) for _ in range(2))
    assert one == other > 0


def test_the_secant_by_hand():
    setup = ref.setup(GD())
    start = setup.task.initial
    end = shift(start, {name: 0.1 * torch.sin(value) for name, value in start.items()})
    f, x, y = lab.net_gradients(setup, 0.2)[0], lab.vector(start), lab.vector(end)
    expected = np.linalg.norm(f(y) - f(x)) / np.linalg.norm(y - x)
    data = setup.data(0, "train", 0)
    assert float(secant(setup.task, start, end, data, 0.2)) == pytest.approx(expected, rel=1e-12)
    assert float(secant(setup.task, start, start, data, 0.2)) == 0


def test_the_secant_of_models_that_differ_by_rounding_is_zero():
    """Without the limit, the largest of these quotients is far above the smoothness."""
    setup, f = lab.uneven(GD())
    data, start = setup.data(0, "train", 0), setup.task.initial
    L, found = np.linalg.eigvalsh(f[0].H)[-1], []
    for scale in 10.0 ** np.arange(-17, 0):
        end = {name: value + scale * torch.sin(1e3 * value + 1) for name, value in start.items()}
        found.append(float(secant(setup.task, start, end, data, 0.0)))
    assert max(found) < L * (1 + 1e-6)
    assert found[-1] > 0.1 * L
    assert found[0] == 0


def test_what_power_iteration_costs_is_what_would_be_counted_step_by_step(monkeypatch):
    setup = ref.setup(GD())
    data, totals = setup.data(0, "train", 0), []
    for _ in range(2):
        with CountFlops() as counted:
            hessian_norm(setup.task, setup.task.initial, data, 0.1)
        totals.append(counted.total)
        monkeypatch.setattr(smoothness, "alike", lambda work: work)
    assert totals[0] == totals[1] > 0


def test_methods_with_one_step_size_for_all_clients_take_it_from_the_estimates():
    load = ref.setup(GD())
    L = [hessian_norm(load.task, load.task.initial, load.data(i, "train", 0), 0.0) for i in range(4)]
    assert ref.setup(GD(gamma="1/hessian")).method.gamma == pytest.approx(1 / np.mean(L), rel=1e-6)
    assert ref.setup(Scaffnew(gamma="1/hessian")).method.gamma == pytest.approx(1 / max(L), rel=1e-6)
    with pytest.raises(UserError, match=r"method\.p = \"optimal\" needs step sizes from theory"):
        ref.setup(Scaffnew(gamma="1/hessian", p="optimal"))


def test_the_search_for_a_minimum_can_use_it():
    setup, _ = lab.least_squares(GD())
    data, start = setup.data(0, "train", 0), setup.task.initial
    one, other = (
        minimum(setup.task, start, data, 0.1, Search("gd", rate, 0.0, 5))[0]
        for rate in ("1/hessian", 1 / curvature(setup.task, data, 0.1).L)
    )
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-5)
