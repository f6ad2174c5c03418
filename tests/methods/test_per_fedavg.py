"""Per-FedAvg against its paper: rounds by hand in NumPy, the gradient of its objective, and FedAvg as its limit."""

import numpy as np
import pytest

import reference as ref
from coterie.clients.vmap import Vmap
from coterie.core.counting import CountFlops
from coterie.core.steps import minibatch
from coterie.measure.cost import local_work
from coterie.methods import FedAvg, PerFedAvg
from engines import assert_same_rounds, model
from laboratory import LINEAR, least_squares, vector

ALL = ref.BODY + ref.HEAD


def sent(setup, client, index=1):
    data, rnd = setup.data(client, "train", index), ref.announced(setup, 1, index)
    return setup.method.local_update(setup.task, setup.task.shared_model(), {}, data, rnd).tensors


def played(method, cohort):
    setup = ref.setup(method)
    rnd = ref.announced(setup, len(cohort))
    return setup, ref.play(setup, setup.task.shared_model(), {}, ref.store(setup), cohort, rnd).shared


def test_a_first_order_round_by_hand():
    setup, after = played(PerFedAvg(tau=2, alpha=0.3, beta=0.2), [0, 2, 3])
    ends = []
    for i in (0, 2, 3):
        w, (x, y) = ref.arrays(setup.task.initial), ref.examples(setup, i)
        for _ in range(2):
            u = ref.step(w, ref.loss_and_gradient(w, x, y)[1], 0.3, ALL)
            w = ref.step(w, ref.loss_and_gradient(u, x, y)[1], 0.2, ALL)
        ends.append(w)
    ref.assert_same(after, {name: sum(end[name] for end in ends) / 3 for name in ALL})


def test_a_step_takes_three_minibatches():
    setup = ref.setup(PerFedAvg(tau=2, alpha=0.3, beta=0.2, batch_size=2))
    data, start = setup.data(2, "train", 1), ref.arrays(setup.task.initial)
    w = start
    for step in range(2):
        (x, y), (x1, y1) = (
            (batch.x.numpy(), batch.y.numpy()) for batch in (minibatch(data, 2, 3 * step + part) for part in range(2))
        )
        u = ref.step(w, ref.loss_and_gradient(w, x, y)[1], 0.3, ALL)
        w = ref.step(w, ref.loss_and_gradient(u, x1, y1)[1], 0.2, ALL)
    ref.assert_same(sent(setup, 2), {name: w[name] - start[name] for name in ALL})


def test_with_the_hessian_a_step_descends_the_loss_after_adaptation():
    """Compare with finite differences of that objective in NumPy, entry by entry."""
    setup = ref.setup(PerFedAvg(tau=1, alpha=0.3, beta=1.0, order="hessian"))
    w, (x, y) = ref.arrays(setup.task.initial), ref.examples(setup, 2)

    def adapted_loss(params):
        u = ref.step(params, ref.loss_and_gradient(params, x, y)[1], 0.3, ALL)
        return ref.loss_and_gradient(u, x, y)[0]

    message = sent(setup, 2)
    for name in ALL:
        slope = np.zeros_like(w[name])
        for place in np.ndindex(slope.shape):
            ends = []
            for sign in (1, -1):
                moved = {**w, name: w[name].copy()}
                moved[name][place] += sign * 1e-5
                ends.append(adapted_loss(moved))
            slope[place] = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(-message[name].numpy(), slope, atol=1e-9)
    first = sent(ref.setup(PerFedAvg(tau=1, alpha=0.3, beta=1.0)), 2)
    assert not np.allclose(first["head.weight"].numpy(), message["head.weight"].numpy(), rtol=0.01)


def test_on_quadratics_in_closed_form():
    """Each of the three factors is I - alpha H."""
    for order, power in (("first", 1), ("hessian", 2)):
        setup, problems = least_squares(PerFedAvg(tau=1, alpha=0.1, beta=0.5, order=order))
        H, g = problems[1].H, problems[1].gradient(vector(setup.task.initial, names=LINEAR))
        expected = -0.5 * np.linalg.matrix_power(np.eye(len(g)) - 0.1 * H, power) @ g
        np.testing.assert_allclose(vector(sent(setup, 1), names=LINEAR), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.usefixtures("taped")
def test_without_adaptation_it_is_fedavg():
    options = {"tau": 3, "alpha": 0.0, "beta": 0.2, "users": "sizes"}
    _, expected = played(FedAvg(tau=3, eta=0.2), [0, 1, 2])
    for order in ("first", "hessian"):
        ref.assert_same(played(PerFedAvg(**options, order=order), [0, 1, 2])[1], ref.arrays(expected), 0)


@pytest.mark.parametrize("batch_size", [0, 2])
def test_engines_agree_on_the_hessian(batch_size):
    setup = ref.setup(PerFedAvg(tau=2, order="hessian", batch_size=batch_size))
    assert_same_rounds(setup, Vmap(), [[0, 1, 2, 3], [2]], 1e-10)


@pytest.mark.parametrize("batch_size", [0, 2])
@pytest.mark.parametrize("kind", ["mlp", "deep head", "logreg", "norm average"])
def test_the_declared_cost_of_the_hessian_is_the_counted_cost(kind, batch_size):
    setup = ref.setup(PerFedAvg(tau=3, order="hessian", batch_size=batch_size), model=model(kind))
    rnd, shared = ref.announced(setup, 1), setup.method.init_shared(setup.task)
    for client in (0, 2):
        data = setup.data(client, "train", 1)
        with CountFlops() as counted:
            setup.method.local_update(setup.task, shared, ref.store(setup)[client], data, rnd)
        whom = [(len(data.y), setup.load.num_outputs(client))]
        cost = local_work(setup.method, setup.load.work.probe, whom, rnd)
        assert cost.flops == counted.total
        assert cost.body_forwards == 9  # three steps on D, D' and D''


def test_adaptation_goes_at_rate_alpha():
    setup = ref.setup(PerFedAvg(alpha=0.3, beta=0.7))
    w, (x, y) = ref.arrays(setup.task.initial), ref.examples(setup, 0)
    for _ in range(2):
        w = ref.step(w, ref.loss_and_gradient(w, x, y)[1], 0.3, ALL)
    shared = setup.task.shared_model()
    ref.assert_same(setup.method.adapt(setup.task, shared, {}, setup.data(0, "train", 0), 2), w)
