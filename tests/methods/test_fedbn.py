"""FedBN: BatchNorm never leaves a client and is never averaged; the rest is FedAvg."""

import pytest
import torch
from torch import nn

import reference as ref
from coterie.methods import FedAvg, FedBN
from coterie.models.module import Own
from coterie.streams import torch_seeded
from engines import Norm

NORM = {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
SHARED = ("conv.weight", "conv.bias", "fc.weight", "fc.bias")


def game(method, buffers="average"):
    with torch_seeded(0):
        own = Own(net=Norm(), head_name="fc", buffers=buffers)
    return ref.setup(method, ref.federation((5, 3, 8)), own)


def torch_steps(setup, start, client, steps, rate):
    """Train the plain module locally, by an optimizer of PyTorch."""
    net = Norm().double()
    net.load_state_dict(start)
    optimizer, data = torch.optim.SGD(net.parameters(), rate), setup.data(client, "train", 1)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(data.x), data.y).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_two_rounds_of_a_plain_module(buffers):
    setup = game(FedBN(tau=2, eta=0.3), buffers)
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    assert set(shared) == set(SHARED)
    w, own = dict(shared), {i: {name: setup.task.initial[name] for name in NORM} for i in range(3)}
    for index, cohort in enumerate(([0, 1], [1, 2]), 1):
        ends = {i: torch_steps(setup, {**w, **own[i]}, i, 2, 0.3) for i in cohort}
        own |= {i: {name: end[name] for name in NORM} for i, end in ends.items()}
        sizes = {i: len(setup.data(i, "train", 1).y) for i in cohort}
        w = {name: sum(sizes[i] * end[name] for i, end in ends.items()) / sum(sizes.values()) for name in SHARED}
        shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, 2, index)).shared
        torch.testing.assert_close(shared, w, rtol=0, atol=1e-12)
        for i in range(3):
            assert store[i].keys() == own[i].keys()
            torch.testing.assert_close(store[i], {name: own[i][name] for name in store[i]}, rtol=0, atol=1e-12)
    assert not torch.allclose(store[0]["norm.weight"], store[1]["norm.weight"])


def test_batchnorm_is_known_by_type():
    """Its name, depth and dimension do not matter. LayerNorm does not count."""
    with torch_seeded(0):
        inner = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        net = nn.Sequential(inner, nn.LayerNorm(3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 5))
    task = ref.setup(FedBN(), model=Own(net=net, head_name="3")).task
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    expected = [f"0.1.{name}" for name in ("weight", "bias", *statistics)] + [f"2.{name}" for name in statistics]
    assert sorted(task.norm) == sorted(expected)


def test_without_batchnorm_it_is_fedavg_to_the_bit():
    after = []
    for method in (FedBN(tau=3, eta=0.2), FedAvg(tau=3, eta=0.2)):
        setup = ref.setup(method)
        rnd = ref.announced(setup, 2)
        after.append(ref.play(setup, method.init_shared(setup.task), {}, ref.store(setup), [0, 2], rnd).shared)
    ref.assert_same(after[0], ref.arrays(after[1]), 0)
