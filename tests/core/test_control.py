"""The coin of Scaffnew and its successors, and what a client keeps of the search for its optimum."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie.core.round import Round
from coterie.core.steps import control
from coterie.core.steps.control import Optima, steps_to_coin
from coterie.core.tree import pick, within
from coterie.methods import Local, Scafflix
from coterie.models.mlp import MLP
from coterie.models.module import Own
from coterie.streams import torch_seeded


def draws(p: float, seed: int = 0) -> np.ndarray:
    return np.array([steps_to_coin(p, Round(index, 4, 40, 4, seed)) for index in range(1, 4001)])


def test_the_coin_is_geometric():
    for p in (0.5, 0.1):
        steps = draws(p)
        assert steps.min() == 1
        np.testing.assert_allclose(steps.mean(), 1 / p, rtol=0.05)
        np.testing.assert_allclose([(steps > k).mean() for k in (1, 2, 5)], (1 - p) ** np.array([1, 2, 5]), atol=0.03)
    assert (draws(1.0) == 1).all()


def test_the_coin_depends_on_the_seed_and_the_round_alone():
    assert (draws(0.3) == draws(0.3)).all()
    assert (draws(0.3) != draws(0.3, seed=1)).any()


def test_the_search_is_local_training_and_leaves_local_buffers_as_that_does():
    with torch_seeded(0):
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 5))
    model = Own(net=net, head_name="2", buffers="local")
    setup = ref.setup(Scafflix(optimum_rate=0.2, optimum_epochs=3), model=model)
    alone = ref.setup(Local(tau=3, beta=0.2), model=model)
    data, rnd = alone.data(0, "train", 0), ref.announced(alone, 1)
    trained = alone.method.local_update(alone.task, {}, setup.task.initial, data, rnd).personal
    personal = ref.store(setup)[0]
    for name in setup.task.buffers:
        torch.testing.assert_close(personal[name], trained[name], rtol=1e-13, atol=1e-13)
    optimum, expected = within("optimum", personal), pick(trained, setup.task.params)
    torch.testing.assert_close(optimum, expected, rtol=0, atol=1e-14)
    assert not torch.equal(personal["1.running_mean"], setup.task.initial["1.running_mean"])


def prepared(method, model=None, memory=None, data=None):
    """Prepare the first client. Returns (its personal state, operations, which its first visit pays for)."""
    setup = ref.setup(method, data, model=model or MLP(hidden=[3]))
    shared, rnd, kept = setup.method.init_shared(setup.task), ref.announced(setup, 1), ref.store(setup)
    with memory or nullcontext():
        personal = kept[0]
    first, second = (ref.play(setup, shared, {}, kept, [0], rnd).cost.flops for _ in range(2))
    return personal, first - second


def test_runs_that_share_optima_have_what_they_would_have_alone(monkeypatch):
    searches, memory = [], Optima()
    plain = control.minimum
    monkeypatch.setattr(control, "minimum", lambda *args: (searches.append(args), plain(*args))[1])
    first = Scafflix(alpha=0.3, optimum_epochs=3)
    alone, cost = prepared(first)
    assert prepared(first, memory=memory)[1] == cost > 0
    again, same_cost = prepared(Scafflix(alpha=0.6, gamma=0.7, p=0.5, optimum_epochs=3), memory=memory)
    assert len(searches) == 2
    assert same_cost == cost
    assert float(again[".alpha"]) == pytest.approx(0.6)
    expected = {name: value.numpy() for name, value in within("optimum", alone).items()}
    assert expected.keys() == set(ref.BODY + ref.HEAD)
    ref.assert_same(within("optimum", again), expected, 0)
    prepared(first)
    assert len(searches) == 3  # nothing is remembered outside the context


def test_what_the_search_depends_on_is_not_shared(monkeypatch):
    searches, memory = [], Optima()
    plain = control.minimum
    monkeypatch.setattr(control, "minimum", lambda *args: (searches.append(args), plain(*args))[1])
    own = {"optimum_epochs": 3}
    prepared(Scafflix(**own), memory=memory)
    prepared(Scafflix(mu=0.1, **own), memory=memory)
    prepared(Scafflix(optimum_rate=0.2, **own), memory=memory)
    prepared(Scafflix(**own), memory=memory, data=ref.federation((4, 3, 8, 1)))
    tanh = Own(net=nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 5)), head_name="2")
    relu = Own(net=nn.Sequential(tanh.net[0], nn.ReLU(), tanh.net[2]), head_name="2")
    prepared(Scafflix(**own), tanh, memory)
    prepared(Scafflix(**own), relu, memory)
    assert len(searches) == 6
    monkeypatch.setattr(control, "ROOM", 0)
    full = Optima()
    prepared(Scafflix(**own), memory=full)
    prepared(Scafflix(**own), memory=full)
    assert len(searches) == 8
