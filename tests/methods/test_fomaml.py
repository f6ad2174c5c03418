"""FOMAML against its paper: clients send the last gradient only. (test_fedsgd.py shows that one step is FedSGD.)"""

import numpy as np
import pytest
import torch

import reference as ref
from coterie.core.steps import minibatch
from coterie.methods import FOMAML, FedAvg
from coterie.methods.feddecay import emphasis
from coterie.models.module import Own
from coterie.streams import torch_seeded
from engines import Norm
from laboratory import LINEAR, least_squares, vector

ALL = ref.BODY + ref.HEAD


def gradients(setup, client, steps, rate):
    params, found = ref.arrays(setup.task.initial), []
    for _ in range(steps):
        found.append(ref.loss_and_gradient(params, *ref.examples(setup, client))[1])
        params = ref.step(params, found[-1], rate, ALL)
    return found


def test_a_round_by_hand():
    setup = ref.setup(FOMAML(tau=3, eta=0.4))
    start, cohort = ref.arrays(setup.task.initial), [0, 2, 3]
    last = [gradients(setup, i, 3, 0.4)[-1] for i in cohort]
    mean = {name: sum(g[name] for g in last) / 3 for name in ALL}
    played = ref.play(setup, setup.task.shared_model(), {}, ref.store(setup), cohort, ref.announced(setup, 3))
    ref.assert_same(played.shared, ref.step(start, mean, 0.4, ALL))


def test_the_last_gradient_is_on_a_minibatch_of_its_own():
    setup = ref.setup(FOMAML(tau=3, eta=0.4, batch_size=2))
    data, params = setup.data(2, "train", 1), ref.arrays(setup.task.initial)
    for step in range(3):
        batch = minibatch(data, 2, step)
        _, last = ref.loss_and_gradient(params, batch.x.numpy(), batch.y.numpy())
        params = ref.step(params, last, 0.4, ALL)
    sent = setup.method.local_update(setup.task, setup.task.shared_model(), {}, data, ref.announced(setup, 1))
    ref.assert_same(sent.tensors, {name: -0.4 * last[name] for name in ALL})


def test_it_is_not_fedavg():
    sent = []
    for method in (FOMAML(tau=3, eta=0.4), FedAvg(tau=3, eta=0.4)):
        setup = ref.setup(method)
        data, rnd = setup.data(2, "train", 1), ref.announced(setup, 1)
        sent.append(method.local_update(setup.task, setup.task.shared_model(), {}, data, rnd).tensors["head.weight"])
    assert not torch.allclose(*sent, rtol=0.1)


def test_the_buffers_move_with_every_pass():
    with torch_seeded(0):
        own = Own(net=Norm(), head_name="fc")
    setup = ref.setup(FOMAML(tau=3), model=own)
    shared, rnd = setup.task.shared_model(), ref.announced(setup, 1)
    sent = setup.method.local_update(setup.task, shared, {}, setup.data(2, "train", 1), rnd)
    assert sent.tensors["norm.num_batches_tracked"] == 3


def test_table_1_on_quadratics():
    """After two steps the gradient that is sent is g - 2 eta H g + eta² H² g, so the emphasis is 2 eta."""
    eta = 0.05
    setup, problems = least_squares(FOMAML(tau=3, eta=eta))
    shared = setup.task.shared_model()
    sent = setup.method.local_update(setup.task, shared, {}, setup.data(0, "train", 1), ref.announced(setup, 1))
    H, g = problems[0].H, problems[0].gradient(vector(shared, names=LINEAR))
    ratio = emphasis([eta] * 3, [0, 0, 1])
    assert ratio == pytest.approx(2 * eta)
    expected = g - ratio * H @ g + eta**2 * H @ H @ g
    np.testing.assert_allclose(vector(sent.tensors, names=LINEAR) / -eta, expected, rtol=1e-10)
