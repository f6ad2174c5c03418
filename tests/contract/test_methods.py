"""What every registered method must do. A new method is tested here as soon as it is registered."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie import Federation, registry
from coterie.core.answers import exchanged, letter_of
from coterie.core.counting import CountFlops
from coterie.core.method import Exchanges, FixedBody, Receives
from coterie.core.tree import stack
from coterie.measure.cost import Cost, local_work
from coterie.measure.record import Record
from coterie.models.logreg import LogReg
from coterie.models.mlp import MLP
from coterie.models.module import Own
from coterie.run import Run
from coterie.streams import torch_seeded
from coterie.training import train
from engines import METHODS, representatives, slow_unless, takes_epochs

BY_EPOCHS = [name for name in METHODS if takes_epochs(name)]
MODELS = ["mlp", "conv", "deep head", "logreg"]


class ConvNet(nn.Module):
    """A convolution and a BatchNorm, to have buffers and something else than matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x.reshape(-1, 1, 2, 2)))).flatten(1))


def make(name: str, model: str, buffers: str = "average") -> ref.Game:
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


def start(setup: ref.Game) -> tuple[Any, Any, ref.Kept]:
    shared = setup.method.init_shared(setup.task)
    return shared, setup.method.init_memory(setup.task, shared), ref.store(setup)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def declared(setup: ref.Game, client: int, rnd: Any) -> Cost:
    """Return the cost of a client's local update as the method declares it."""
    assert setup.method.passes(4, rnd) is not None, "a method of this package declares its cost"
    size, outputs = int(setup.federation.sizes()[client]), setup.load.num_outputs(client)
    return local_work(setup.method, setup.load.work.probe, [(size, outputs)], rnd)


@pytest.mark.parametrize("model", ["mlp", "conv"])
@pytest.mark.parametrize("name", METHODS)
def test_only_what_is_shared_travels_and_nothing_is_mutated(name, model):
    setup = make(name, model)
    method, task = setup.method, setup.task
    shared, memory, store = start(setup)
    personal, data, rnd = store[0], setup.data(0, "train", 1), ref.announced(setup, 2)
    before = [{key: value.clone() for key, value in tree.items()} for tree in (shared, memory, personal)]
    reply = method.local_update(task, shared, personal, data, rnd)
    total = setup.load.aggregate.start()
    total.add(torch.tensor([0.5]), stack([reply.tensors]), stack([reply.numbers]))
    after, remembered = method.server_update(task, shared, memory, total.result(), rnd)
    received = reply.personal
    if isinstance(method, Receives):
        received = method.receive(task, after, reply.personal, rnd)
    if isinstance(method, Exchanges):
        (letter,) = exchanged(method, {0: reply.letter}, rnd).values()
        received = method.read(task, received, letter, rnd)
    method.adapt(task, shared, personal, data, 3)
    assert all(same(old, new) for old, new in zip(before, (shared, memory, personal), strict=True))
    assert reply.tensors.keys() <= shared.keys()
    assert all(value.ndim == 0 for value in reply.numbers.values()), "more than numbers about the client"
    assert received.keys() == personal.keys()
    for old, new in (
        (shared, after),
        (memory, remembered),
        (personal, received),
        (letter_of(method, task), reply.letter),
    ):
        assert {name: (value.shape, value.dtype) for name, value in old.items()} == {
            name: (value.shape, value.dtype) for name, value in new.items()
        }


def costed() -> list[Any]:
    """Return (method, model) for all models, but logreg without the methods that need not have a gradient there.

    A method with a fixed body takes a gradient over features that leads to no parameter of logreg. So does FedPAC, and
    FedBABU trains nothing else than a body.
    """
    fixed = ["fedbabu", "fedpac"] + [name for name in METHODS if issubclass(registry.load("method", name), FixedBody)]
    return [(name, model) for name in METHODS for model in MODELS if not (model == "logreg" and name in fixed)]


@pytest.mark.parametrize(
    ("name", "model", "client"),
    [slow_unless(i == 1 or model == "mlp", name, model, i) for name, model in costed() for i in range(3)],
)
def test_the_declared_cost_is_the_counted_cost(name, client, model, monkeypatch):
    setup = make(name, model)
    shared, _, store = start(setup)
    rnd, personal = ref.announced(setup, 2), store[client]
    expected = declared(setup, client, rnd)
    passes = []
    original = setup.task._features
    monkeypatch.setattr(setup.task, "_features", lambda *arguments: passes.append(1) or original(*arguments))
    with CountFlops() as counted:
        setup.method.local_update(setup.task, shared, personal, setup.data(client, "train", 1), rnd)
    assert counted.total > 0
    assert expected.flops == counted.total
    assert expected.body_forwards == len(passes)


@pytest.mark.parametrize(
    ("name", "client", "model"),
    [slow_unless(model == "mlp", name, i, model) for name in BY_EPOCHS for i in range(3) for model in ("mlp", "conv")],
)
def test_the_declared_cost_of_epochs_is_the_counted_cost(name, client, model):
    """Of 5, 3 and 8 examples in batches of 3: 2, 1 and 3 steps an epoch."""
    setup = make(name, model)
    setup = setup.having(method=replace(setup.method, tau="2 epochs", batch_size=3))
    shared, _, store = start(setup)
    rnd, personal = ref.announced(setup, 2), store[client]
    with CountFlops() as counted:
        setup.method.local_update(setup.task, shared, personal, setup.data(client, "train", 1), rnd)
    assert declared(setup, client, rnd).flops == counted.total
    assert declared(setup, client, rnd).body_backwards % (2 * (2, 1, 3)[client]) == 0


@pytest.mark.parametrize(
    ("name", "client", "steps"),
    [
        slow_unless(client == 0 or name in representatives(), name, client, steps)
        for name in BY_EPOCHS
        for client, steps in ((0, 4), (1, 2), (2, 6))
    ],
)
def test_two_epochs_are_the_steps_that_they_take(name, client, steps):
    """Of 5, 3 and 8 examples in batches of 3; as many epochs as steps, where a step has all examples."""
    results = []
    for tau, batch in (("2 epochs", 3), (steps, 3), ("2 epochs", 0), (2, 0)):
        setup = make(name, "conv")
        setup = setup.having(method=replace(setup.method, tau=tau, batch_size=batch))
        shared, _, store = start(setup)
        data = setup.data(client, "train", 1)
        results.append(setup.method.local_update(setup.task, shared, store[client], data, ref.announced(setup, 2)))
    for one, other in (results[:2], results[2:]):
        assert all(same(part, their_part) for part, their_part in zip(one, other, strict=True))
    assert client == 1 or not same(results[0].tensors | results[0].personal, results[2].tensors | results[2].personal)


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


def sharing_buffers() -> list[str]:
    """Return the methods that share BatchNorm statistics."""
    return [name for name in METHODS if "norm.running_mean" in start(make(name, "conv", "average"))[0]]


SHARING_BUFFERS = sharing_buffers()


@pytest.mark.parametrize("name", SHARING_BUFFERS)
def test_batchnorm_buffers_are_averaged_over_the_cohort(name):
    setup = make(name, "conv", "average")
    shared, memory, store = start(setup)
    sizes = torch.as_tensor(setup.federation.sizes(), dtype=torch.float64)
    weights = setup.method.weights(sizes, ref.announced(setup, 4))
    alone = []
    for client in range(4):
        reply = setup.method.local_update(
            setup.task, shared, store[client], setup.data(client, "train", 1), ref.announced(setup, 4)
        )
        alone.append(shared["norm.running_mean"] + reply.tensors["norm.running_mean"])
    played = ref.play(setup, shared, memory, store, [0, 1, 2, 3], ref.announced(setup, 4))
    expected = sum(weight / weights.sum() * mean for weight, mean in zip(weights, alone, strict=True))
    torch.testing.assert_close(played.shared["norm.running_mean"], expected, rtol=0, atol=1e-12)
    assert not any(torch.allclose(expected, mean) for mean in alone)
    assert played.shared["norm.num_batches_tracked"].dtype == torch.int64


@pytest.mark.parametrize("name", SHARING_BUFFERS)
def test_a_cohort_of_one_moves_the_buffers_where_that_client_has_them(name):
    """Whatever the weights of the sum are, buffers are averaged: a variance never leaves the range of the clients'."""
    setup = make(name, "conv", "average")
    shared, memory, store = start(setup)
    rnd = ref.announced(setup, 1)
    reply = setup.method.local_update(setup.task, shared, store[2], setup.data(2, "train", 1), rnd)
    played = ref.play(setup, shared, memory, store, [2], rnd)
    for buffer in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(played.shared[buffer], shared[buffer] + reply.tensors[buffer], rtol=0, atol=1e-12)


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
    assert declared(setup, 1, rnd).flops == counted.total


@pytest.mark.parametrize("name", METHODS)
def test_local_batchnorm_buffers_never_leave_the_client(name):
    setup = make(name, "conv", "local")
    shared, _, store = start(setup)
    buffers = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    tensors, _, personal, letter = setup.method.local_update(
        setup.task, shared, store[0], setup.data(0, "train", 1), ref.announced(setup, 4)
    )
    assert not buffers & (shared.keys() | tensors.keys() | letter.keys())
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


def run(name: str, seed: int = 0, rounds: int = 12, **options: Any) -> Run:
    some = None if registry.load("method", name).everyone else 4
    return train(blobs(), method=name, model="mlp", rounds=rounds, clients_per_round=some, seed=seed, **options)


def without_seconds(history: list[Record]) -> list[Record]:
    return [replace(record, cost=replace(record.cost, seconds=0.0, eval_seconds=0.0)) for record in history]


@pytest.mark.parametrize("name", METHODS)
def test_the_seed_decides_everything(name):
    one, again, other = (run(name, rounds=3, seed=seed, adapt_steps=3) for seed in (0, 0, 1))
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
