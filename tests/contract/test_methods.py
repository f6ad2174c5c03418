"""What every registered method must do. A new method is tested here the moment it is registered."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie import Federation, registry
from coterie.clients.setup import Setup
from coterie.core.counting import CountFlops
from coterie.core.tree import stack
from coterie.measure.cost import local_work
from coterie.measure.record import Record
from coterie.models.logreg import LogReg
from coterie.models.mlp import MLP
from coterie.models.module import Own
from coterie.run import Run
from coterie.settings import Length
from coterie.storage.store import PersonalStore
from coterie.streams import torch_seeded
from coterie.training import train

METHODS = registry.names("method")
BY_EPOCHS = [name for name in METHODS if registry.load("method", name).__annotations__.get("tau") == Length]


class ConvNet(nn.Module):
    """A convolution and a BatchNorm, to have buffers and something else than matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x.reshape(-1, 1, 2, 2)))).flatten(1))


def make(name: str, model: str, buffers: str = "average") -> Setup:
    method = registry.load("method", name)()
    if model == "mlp":
        return ref.setup(method)
    if model == "deep head":
        with torch_seeded(0):
            head = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))
            net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), head)
        return ref.setup(method, model=Own(net=net, head_name="2"))
    if model == "logreg":
        return ref.setup(method, model=LogReg())
    with torch_seeded(0):
        own = Own(net=ConvNet(), head_name="fc", buffers=buffers)
    return ref.setup(method, ref.federation(sizes=(5, 3, 8, 2)), own)


def start(setup: Setup) -> tuple[Any, Any, PersonalStore]:
    shared = setup.method.init_shared(setup.task)
    return shared, setup.method.init_memory(setup.task, shared), ref.store(setup)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("model", ["mlp", "conv"])
@pytest.mark.parametrize("name", METHODS)
def test_only_what_is_shared_travels_and_nothing_is_mutated(name, model):
    setup = make(name, model)
    method, task = setup.method, setup.task
    shared, memory, store = start(setup)
    personal, data, rnd = store[0], setup.data(0, "train", 1), ref.announced(setup, 2)
    before = [{key: value.clone() for key, value in tree.items()} for tree in (shared, memory, personal)]
    message, updated = method.local_update(task, shared, personal, data, rnd)
    total = setup.aggregate.start()
    total.add(torch.tensor([0.5]), stack([message]))
    after, remembered = method.server_update(task, shared, memory, total.result(), rnd)
    received = method.receive(task, after, updated, rnd)
    method.adapt(task, shared, personal, data, 3)
    assert all(same(old, new) for old, new in zip(before, (shared, memory, personal), strict=True))
    for key in message.keys() - shared.keys():
        assert message[key].ndim == 0, f"{key} is more than a number about the client"
    assert received.keys() == personal.keys()
    for old, new in ((shared, after), (memory, remembered), (personal, received)):
        assert {name: (value.shape, value.dtype) for name, value in old.items()} == {
            name: (value.shape, value.dtype) for name, value in new.items()
        }


@pytest.mark.parametrize("model", ["mlp", "conv", "deep head", "logreg"])
@pytest.mark.parametrize("client", [0, 1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_the_declared_cost_is_the_counted_cost(name, client, model, monkeypatch):
    setup = make(name, model)
    if model == "logreg" and setup.method.fixed_body:
        pytest.skip("it takes a gradient over the features that leads to no parameter, and need not")
    shared, _, store = start(setup)
    rnd, personal = ref.announced(setup, 2), store[client]
    declared = local_work(setup, [client], rnd)
    passes = []
    original = setup.task._features
    monkeypatch.setattr(setup.task, "_features", lambda *arguments: passes.append(1) or original(*arguments))
    with CountFlops() as counted:
        setup.method.local_update(setup.task, shared, personal, setup.data(client, "train", 1), rnd)
    assert counted.total > 0
    assert declared.flops == counted.total
    assert declared.body_forwards == len(passes)


@pytest.mark.parametrize("model", ["mlp", "conv"])
@pytest.mark.parametrize("client", [0, 1, 2])
@pytest.mark.parametrize("name", BY_EPOCHS)
def test_the_declared_cost_of_epochs_is_the_counted_cost(name, client, model):
    """Of 5, 3 and 8 examples in batches of 3: 2, 1 and 3 steps an epoch."""
    setup = make(name, model)
    setup = replace(setup, method=replace(setup.method, tau="2 epochs", batch_size=3))
    shared, _, store = start(setup)
    rnd, personal = ref.announced(setup, 2), store[client]
    with CountFlops() as counted:
        setup.method.local_update(setup.task, shared, personal, setup.data(client, "train", 1), rnd)
    assert local_work(setup, [client], rnd).flops == counted.total
    assert local_work(setup, [client], rnd).body_backwards % (2 * (2, 1, 3)[client]) == 0


@pytest.mark.parametrize(("client", "steps"), [(0, 4), (1, 2), (2, 6)])
@pytest.mark.parametrize("name", BY_EPOCHS)
def test_two_epochs_are_the_steps_that_they_take(name, client, steps):
    """Of 5, 3 and 8 examples in batches of 3; as many epochs as steps, where a step has all examples."""
    results = []
    for tau, batch in (("2 epochs", 3), (steps, 3), ("2 epochs", 0), (2, 0)):
        setup = make(name, "conv")
        setup = replace(setup, method=replace(setup.method, tau=tau, batch_size=batch))
        shared, _, store = start(setup)
        data = setup.data(client, "train", 1)
        results.append(setup.method.local_update(setup.task, shared, store[client], data, ref.announced(setup, 2)))
    for one, other in (results[:2], results[2:]):
        assert same(one[0], other[0])
        assert same(one[1], other[1])
    assert client == 1 or not same(results[0][0], results[2][0])


@pytest.mark.parametrize("cohort", [[0, 1, 2, 3], [3], [1, 3]])
@pytest.mark.parametrize("name", METHODS)
def test_unequal_clients(name, cohort):
    """Sizes 5, 3, 8, 1; heads of 3, 2, 3, 1; one client with a single example of a single class; a cohort of one."""
    setup = make(name, "mlp")
    shared, memory, store = start(setup)
    played = ref.play(setup, shared, memory, store, cohort, ref.announced(setup, len(cohort)))
    assert not played.refused
    outputs = [setup.federation.num_outputs(client, setup.labels) for client in cohort]
    for client, width in zip(cohort, outputs, strict=True):
        x = setup.federation.data(client, "test", setup.labels).x
        predicted = setup.method.predict(setup.task, played.shared, store[client], x)
        assert predicted.shape == (6, width)
        assert torch.isfinite(predicted).all()


@pytest.mark.parametrize("name", METHODS)
def test_batchnorm_buffers_are_averaged_over_the_cohort(name):
    setup = make(name, "conv", "average")
    shared, memory, store = start(setup)
    if "norm.running_mean" not in shared:
        pytest.skip("these buffers are not shared")
    sizes = torch.as_tensor(setup.federation.sizes(), dtype=torch.float64)
    weights = setup.method.weights(sizes, ref.announced(setup, 4))
    alone = []
    for client in range(4):
        message, _ = setup.method.local_update(
            setup.task, shared, store[client], setup.data(client, "train", 1), ref.announced(setup, 4)
        )
        alone.append(shared["norm.running_mean"] + message["norm.running_mean"])
    played = ref.play(setup, shared, memory, store, [0, 1, 2, 3], ref.announced(setup, 4))
    expected = sum(weight / weights.sum() * mean for weight, mean in zip(weights, alone, strict=True))
    torch.testing.assert_close(played.shared["norm.running_mean"], expected, rtol=0, atol=1e-12)
    assert not any(torch.allclose(expected, mean) for mean in alone)
    assert played.shared["norm.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("name", METHODS)
def test_a_cohort_of_one_moves_the_buffers_where_that_client_has_them(name):
    """Whatever the weights of the sum are, buffers are averaged: a variance never leaves the range of the clients'."""
    setup = make(name, "conv", "average")
    shared, memory, store = start(setup)
    if "norm.running_mean" not in shared:
        pytest.skip("these buffers are not shared")
    rnd = ref.announced(setup, 1)
    message, _ = setup.method.local_update(setup.task, shared, store[2], setup.data(2, "train", 1), rnd)
    played = ref.play(setup, shared, memory, store, [2], rnd)
    for buffer in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(played.shared[buffer], shared[buffer] + message[buffer], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_adaptation_keeps_the_local_buffers_it_made(name):
    setup = make(name, "conv", "local")
    shared, _, store = start(setup)
    adapted = setup.method.adapt(setup.task, shared, store[0], setup.data(0, "train", 0), 3)
    assert not torch.equal(adapted["norm.running_mean"], store[0]["norm.running_mean"])


@pytest.mark.parametrize("name", METHODS)
def test_the_cost_is_right_with_local_labels_too(name):
    """Where the head is shared it has as many outputs as the largest label set, whatever the client's own is."""
    setup = ref.setup(registry.load("method", name)(), model=MLP(labels="local"))
    shared, _, store = start(setup)
    rnd, personal = ref.announced(setup, 2), store[1]
    with CountFlops() as counted:
        setup.method.local_update(setup.task, shared, personal, setup.data(1, "train", 1), rnd)
    assert local_work(setup, [1], rnd).flops == counted.total


@pytest.mark.parametrize("name", METHODS)
def test_local_batchnorm_buffers_never_leave_the_client(name):
    setup = make(name, "conv", "local")
    shared, _, store = start(setup)
    buffers = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    message, personal = setup.method.local_update(
        setup.task, shared, store[0], setup.data(0, "train", 1), ref.announced(setup, 4)
    )
    assert not buffers & (shared.keys() | message.keys())
    assert buffers <= personal.keys()
    assert not torch.equal(personal["norm.running_mean"], store[0]["norm.running_mean"])


def blobs(seed: int = 0) -> Federation:
    """Twelve clients with two of four well separated classes each; three of them are new."""
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(4, 6))
    clients = {}
    for i in range(12):
        y = np.array([i % 4, (i + 1 + i // 4) % 4] * 10)
        x = centres[y] + rng.normal(size=(20, 6))
        clients[f"c{i}"] = (x[:12], y[:12], x[12:], y[12:])
    return Federation.from_arrays(clients, new=["c9", "c10", "c11"])


def run(name: str, seed: int = 0, rounds: int = 12) -> Run:
    some = None if registry.load("method", name).everyone else 4
    return train(blobs(), method=name, model="mlp", rounds=rounds, clients_per_round=some, seed=seed, eval_every=6)


def without_seconds(history: list[Record]) -> list[Record]:
    return [replace(record, cost=replace(record.cost, seconds=0.0)) for record in history]


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_decides_everything(name):
    one, again, other = (run(name, rounds=3, seed=seed) for seed in (0, 0, 1))
    assert without_seconds(one.history) == without_seconds(again.history)
    assert same(one.shared, again.shared)
    assert same(one.personal("c0"), again.personal("c0"))
    assert not (same(one.shared, other.shared) and same(one.personal("c0"), other.personal("c0")))
    if not registry.load("method", name).everyone:
        assert [record.cohort for record in one.history] != [record.cohort for record in other.history]


@pytest.mark.parametrize("name", METHODS)
def test_it_learns_and_new_users_profit_from_adaptation(name):
    trained, untrained = run(name), run(name, rounds=0)
    assert trained.summary.train_loss < 0.8 * untrained.summary.train_loss
    for key in ("existing.adapted", "new.after"):
        assert trained.summary[key].mean >= untrained.summary[key].mean
    assert trained.summary.new.after.mean > 0.8
