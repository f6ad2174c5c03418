"""The centralised reference: gradient descent, or Adam, on the pooled data."""

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie import train
from coterie.errors import UserError
from coterie.methods import Centralised


def pooled(setup):
    parts = [ref.examples(setup, i) for i in setup.federation.existing]
    x, y = (torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True))
    return x, y


@pytest.mark.parametrize(("server", "optimizer"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)])
def test_rounds_are_steps_of_pytorchs_optimizer_on_the_pooled_data(server, optimizer):
    setup = ref.setup(Centralised(rho=0.05, server=server))
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5)).double()
    names = dict(zip(ref.BODY + ref.HEAD, net.parameters(), strict=True))
    with torch.no_grad():
        for name, value in names.items():
            value.copy_(setup.task.initial[name])
    steps, (x, y) = optimizer(net.parameters(), lr=0.05), pooled(setup)

    shared = setup.task.shared_model()
    memory, store = setup.method.init_memory(setup.task, shared), ref.store(setup)
    for index in range(1, 6):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        steps.step()
        played = ref.play(setup, shared, memory, store, [0, 1, 2, 3], ref.announced(setup, 4, index))
        shared, memory = played.shared, played.memory
        assert played.loss == pytest.approx(loss.item(), abs=1e-12)
        ref.assert_same(shared, ref.arrays(names))
    assert store[0] == {}


def test_the_gradient_travels():
    setup = ref.setup(Centralised())
    shared, data = setup.task.shared_model(), setup.data(1, "train", 1)
    reply = setup.method.local_update(setup.task, shared, {}, data, ref.announced(setup, 4))
    loss, gradient = ref.loss_and_gradient(ref.arrays(shared), *ref.examples(setup, 1))
    ref.assert_same(reply.tensors, gradient)
    ref.assert_same(reply.numbers, {"loss": np.array(loss)})
    assert reply.personal == {}


def test_new_users_are_not_pooled():
    setup = ref.setup(Centralised(rho=0.5, server="sgd"), ref.federation((5, 3, 8), new=1))
    torch.testing.assert_close(
        setup.method.weights(torch.tensor([5.0, 3.0]), ref.announced(setup, 2)), torch.tensor([5 / 8, 3 / 8])
    )


@pytest.mark.parametrize(
    "choice",
    [{"clients_per_round": 3}, {"participation": "independent", "probability": 0.9}, {"population": {"dropout": 0.1}}],
)
def test_every_client_is_needed(choice):
    with pytest.raises(UserError, match="every client in every round"):
        train(ref.federation(), method="centralised", engine="loop", rounds=1, **choice)


def test_everyone_may_be_said_in_more_than_one_way():
    for choice in ({}, {"clients_per_round": 4}):
        assert len(train(ref.federation(), method="centralised", engine="loop", rounds=1, **choice).history) == 1


def test_adaptation_is_gradient_descent_on_all_of_the_model():
    setup = ref.setup(Centralised(rho=0.2))
    params = ref.arrays(setup.task.shared_model())
    for _ in range(4):
        gradient = ref.loss_and_gradient(params, *ref.examples(setup, 0))[1]
        params = ref.step(params, gradient, 0.2, ref.BODY + ref.HEAD)
    adapted = setup.method.adapt(setup.task, setup.task.shared_model(), {}, setup.data(0, "train", 0), 4)
    ref.assert_same(adapted, params)
