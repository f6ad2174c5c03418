"""FedRecon against its paper: rounds by hand in NumPy, and how it is related to PFLEGO."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie.clients.engine import Cohort
from coterie.clients.fused import Fused
from coterie.clients.loop import Loop
from coterie.core.tree import pick
from coterie.methods import PFLEGO, FedRecon


def reconstructed(params, x, y, steps, rate):
    for _ in range(steps):
        params = ref.step(params, ref.loss_and_gradient(params, x, y)[1], rate, ref.HEAD)
    return params


def initial_heads(setup):
    return {i: ref.arrays(pick(ref.store(setup)[i], ref.HEAD)) for i in range(4)}


@pytest.mark.parametrize("server", ["sgd", "adam"])
@pytest.mark.parametrize("head", ["rebuilt", "kept"])
def test_two_rounds_by_hand(head, server):
    setup = ref.setup(FedRecon(tau=4, beta=0.3, rho=0.05, server=server, head=head))
    shared, store, sizes = setup.task.shared_body(), ref.store(setup), setup.federation.sizes()
    memory = setup.method.init_memory(setup.task, shared)
    theta, initial = ref.arrays(shared), initial_heads(setup)
    heads = dict(initial)
    m = v = {name: np.zeros_like(theta[name]) for name in ref.BODY}
    for t, cohort in enumerate(([0, 1, 2], [1, 2]), start=1):
        total = {name: np.zeros_like(theta[name]) for name in ref.BODY}
        for i in cohort:
            x, y = ref.examples(setup, i)
            start = initial[i] if head == "rebuilt" else heads[i]
            params = reconstructed({**theta, **start}, x, y, 4, 0.3)
            heads[i] = {name: params[name] for name in ref.HEAD}
            gradient = ref.loss_and_gradient(params, x, y)[1]  # at the final head
            share = sizes[i] / sum(sizes[j] for j in cohort)
            total = {name: total[name] + share * gradient[name] for name in ref.BODY}
        if server == "adam":
            m = {name: 0.9 * m[name] + 0.1 * total[name] for name in m}
            v = {name: 0.999 * v[name] + 0.001 * total[name] ** 2 for name in v}
            total = {name: (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.999**t)) + 1e-8) for name in m}
        theta = ref.step(theta, total, 0.05, ref.BODY)
        played = ref.play(setup, shared, memory, store, cohort, ref.announced(setup, 3, t))
        shared, memory = played.shared, played.memory
        ref.assert_same(shared, theta)
        for i in range(4):
            ref.assert_same({name: store[i][name] for name in ref.HEAD}, heads[i])


def update(method, i=0):
    setup = ref.setup(method)
    personal, data = ref.store(setup)[i], setup.data(i, "train", 1)
    return setup, method.local_update(setup.task, setup.task.shared_body(), personal, data, ref.announced(setup, 2))


def test_only_the_bodys_gradient_travels():
    for method in (FedRecon(), FedRecon(head="kept")):
        _, reply = update(method)
        assert reply.tensors.keys() == set(ref.BODY)
        assert reply.numbers.keys() == {"loss"}


@pytest.mark.parametrize("i", [0, 1])
def test_its_gradient_is_pflegos_after_one_more_head_step(i):
    """PFLEGO with tau + 1 takes its joint gradient where FedRecon with tau takes the body's gradient.

    PFLEGO then also moves the head by that gradient.
    """
    _, mine = update(FedRecon(tau=6, beta=0.3, head="kept"), i)
    setup, theirs = update(PFLEGO(tau=7, beta=0.3, rho=0.1), i)
    ref.assert_same(mine.tensors, ref.arrays(theirs.tensors), 0)
    assert torch.equal(mine.numbers["loss"], theirs.numbers["loss"])
    params = ref.arrays({**setup.task.shared_body(), **mine.personal})
    _, gradient = ref.loss_and_gradient(params, *ref.examples(setup, i))
    ref.assert_same(theirs.personal, {name: params[name] - 0.1 * 4 / 2 * gradient[name] for name in ref.HEAD})


def test_weights_sum_to_one_over_the_cohort():
    setup = ref.setup(FedRecon())
    torch.testing.assert_close(
        setup.method.weights(torch.tensor([3.0, 1.0]), ref.announced(setup, 2)), torch.tensor([0.75, 0.25])
    )


@pytest.mark.parametrize(("engine", "expected"), [(Loop(), 4), (Fused(), 1)])
def test_one_pass_through_the_body_whatever_tau(engine, expected, monkeypatch):
    monkeypatch.setattr("coterie.core.steps.dense_body.counts_declared_work", lambda: True)
    setup = ref.setup(FedRecon(tau=7))
    assert setup.load.work.probe.example_bytes > 0  # measured once, by passes that do not count here
    forwards = []
    setup.task._body.register_forward_hook(lambda *_: forwards.append(1))
    cohort, rnd = [0, 1, 2, 3], ref.announced(setup, 4)
    personal, weights = [ref.store(setup)[i] for i in cohort], torch.full((4,), 0.25)
    engine.local_updates(setup.load, Cohort(setup.task.shared_body(), cohort, personal, weights, rnd))
    assert len(forwards) == expected


@pytest.mark.parametrize("head", ["rebuilt", "kept"])
def test_adaptation_reconstructs(head):
    """A rebuilt head forgets the last visit of the client; a kept head continues from there."""
    setup, (_, _, personal, _) = update(FedRecon(tau=4, beta=0.3, head=head))
    theta, start = setup.task.shared_body(), ref.store(setup)[0] if head == "rebuilt" else personal
    params = ref.arrays({**theta, **{name: start[name] for name in ref.HEAD}})
    params = reconstructed(params, *ref.examples(setup, 0), 5, 0.3)
    adapted = setup.method.adapt(setup.task, theta, personal, setup.data(0, "train", 0), 5)
    assert adapted.keys() == personal.keys()
    ref.assert_same({name: adapted[name] for name in ref.HEAD}, {name: params[name] for name in ref.HEAD})
