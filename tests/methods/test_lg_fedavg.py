"""LG-FedAvg against its paper: rounds by hand in NumPy, FedAvg and local training as its limits."""

import pytest
import torch
from torch import nn

import reference as ref
from coterie.core.tree import num_bytes, pick, shift
from coterie.methods import FedAvg, LGFedAvg, Local
from coterie.models.logreg import LogReg
from coterie.models.module import Own
from coterie.streams import torch_seeded
from engines import Norm

ALL = ref.BODY + ref.HEAD


def descent(params, x, y, steps, rate):
    for _ in range(steps):
        params = ref.step(params, ref.loss_and_gradient(params, x, y)[1], rate, ALL)
    return params


def test_two_rounds_by_hand():
    """Client 2 takes part twice, and continues from its own body."""
    setup = ref.setup(LGFedAvg(tau=3, eta=0.2))
    shared, store, sizes = setup.method.init_shared(setup.task), ref.store(setup), setup.federation.sizes()
    initial = ref.arrays(setup.task.initial)
    W, bodies = pick(initial, ref.HEAD), {i: pick(initial, ref.BODY) for i in range(4)}
    for index, cohort in enumerate(([0, 2, 3], [1, 2]), start=1):
        arrived, loss, rnd = {}, 0.0, ref.announced(setup, len(cohort), index)
        total = sum(sizes[i] for i in cohort)
        for i in cohort:
            x, y = ref.examples(setup, i)
            before_last = descent({**W, **bodies[i]}, x, y, 2, 0.2)
            loss += sizes[i] / total * ref.loss_and_gradient(before_last, x, y)[0]
            arrived[i] = descent(before_last, x, y, 1, 0.2)
            bodies[i] = pick(arrived[i], ref.BODY)
            reply = setup.method.local_update(setup.task, shared, store[i], setup.data(i, "train", index), rnd)
            used = setup.method.personal_params(setup.task, shift(shared, reply.tensors), reply.personal)
            ref.assert_same(used, arrived[i])  # the model that `participants` is scored with
        W = {name: sum(sizes[i] / total * arrived[i][name] for i in cohort) for name in ref.HEAD}
        played = ref.play(setup, shared, {}, store, cohort, rnd)
        shared = played.shared
        ref.assert_same(shared, W)
        assert played.loss == pytest.approx(loss, rel=1e-12)
        for i in range(4):
            ref.assert_same(store[i], bodies[i])
            ref.assert_same(setup.method.personal_params(setup.task, shared, store[i]), {**W, **bodies[i]})


def test_bodies_never_travel():
    setup = ref.setup(LGFedAvg(tau=2))
    shared, rnd = setup.method.init_shared(setup.task), ref.announced(setup, 2)
    assert shared.keys() == set(ref.HEAD)
    reply = setup.method.local_update(setup.task, shared, ref.store(setup)[0], setup.data(0, "train", 1), rnd)
    assert reply.tensors.keys() == set(ref.HEAD)
    assert reply.numbers.keys() == {"loss"}
    cost = ref.play(setup, shared, {}, ref.store(setup), [0, 2], rnd).cost
    head = num_bytes(pick(setup.task.initial, ref.HEAD))
    assert (cost.bytes_down, cost.bytes_up) == (2 * head, 2 * (head + 8))  # the loss has 8 bytes


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batchnorm_stays_with_the_body(buffers):
    with torch_seeded(0):
        own = Own(net=Norm(), head_name="fc", buffers=buffers)
    setup = ref.setup(LGFedAvg(tau=2, eta=0.3), ref.federation((5, 3, 8)), own)
    store, shared = ref.store(setup), setup.method.init_shared(setup.task)
    assert shared.keys() == {"fc.weight", "fc.bias"}
    after = ref.play(setup, shared, {}, store, [0, 1], ref.announced(setup, 2)).shared
    assert after.keys() == shared.keys()
    assert store[0].keys() == setup.task.initial.keys() - shared.keys()
    assert [int(store[i]["norm.num_batches_tracked"]) for i in range(3)] == [2, 2, 0]
    assert not torch.allclose(store[0]["norm.running_mean"], store[1]["norm.running_mean"])


@pytest.mark.parametrize("batch_size", [0, 2])
def test_a_model_that_is_all_head_makes_it_fedavg_to_the_bit(batch_size):
    trees = []
    for method in (LGFedAvg(tau=3, eta=0.2, batch_size=batch_size), FedAvg(tau=3, eta=0.2, batch_size=batch_size)):
        setup = ref.setup(method, model=LogReg())
        assert setup.task.body == ()
        shared, store = method.init_shared(setup.task), ref.store(setup)
        for index, cohort in enumerate(([0, 1, 2], [2, 3]), start=1):
            played = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index))
            shared = played.shared
        assert store[2] == {}
        trees.append({**shared, "loss": torch.tensor(played.loss)})
        trees.append(method.adapt(setup.task, shared, store[1], setup.data(1, "train", 0), 4))
    for mine, plain in zip(trees[:2], trees[2:], strict=True):
        ref.assert_same(mine, ref.arrays(plain), 0)


@pytest.mark.parametrize("batch_size", [0, 2])
def test_without_a_head_it_is_local_training_to_the_bit(batch_size):
    with torch_seeded(0):
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5))
    method, local = LGFedAvg(tau=3, eta=0.2, batch_size=batch_size), Local(tau=3, beta=0.2, batch_size=batch_size)
    setup = ref.setup(method, model=Own(net=net, head_name=""))
    store, alone = ref.store(setup), setup.task.initial
    for index in (1, 2):
        rnd = ref.announced(setup, 2, index)
        alone = local.local_update(setup.task, {}, alone, setup.data(2, "train", index), rnd).personal
        played = ref.play(setup, {}, {}, store, [0, 2], rnd)
        assert played.shared == {}
        ref.assert_same(store[2], ref.arrays(alone), 0)


def test_the_first_round_sends_what_fedavg_sends_of_the_head():
    """All bodies are equal at first, so heads move as in FedAvg. In the second round they do not."""
    after = []
    for method in (LGFedAvg(tau=3, eta=0.2), FedAvg(tau=3, eta=0.2)):
        setup = ref.setup(method)
        shared, store, heads = method.init_shared(setup.task), ref.store(setup), []
        for index in (1, 2):
            shared = ref.play(setup, shared, {}, store, [0, 1, 2], ref.announced(setup, 3, index)).shared
            heads.append(pick(shared, ref.HEAD))
        after.append(heads)
    ref.assert_same(after[0][0], ref.arrays(after[1][0]), 0)
    assert not torch.allclose(after[0][1]["head.weight"], after[1][1]["head.weight"], rtol=1e-3)


def test_adaptation_trains_body_and_head_from_what_the_client_has():
    """A new user starts from the initial body."""
    setup = ref.setup(LGFedAvg(eta=0.3))
    shared = {name: value + 0.1 for name, value in setup.method.init_shared(setup.task).items()}
    fresh = ref.store(setup)[0]
    ref.assert_same(fresh, ref.arrays(pick(setup.task.initial, ref.BODY)), 0)
    for personal in (fresh, {name: value - 0.2 for name, value in fresh.items()}):
        expected = descent(ref.arrays({**shared, **personal}), *ref.examples(setup, 0), 4, 0.3)
        adapted = setup.method.adapt(setup.task, shared, personal, setup.data(0, "train", 0), 4)
        ref.assert_same(setup.method.personal_params(setup.task, shared, adapted), expected)
