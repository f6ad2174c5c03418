"""FedPer against its paper: a round by hand in NumPy, and FedAvg as its limit, bit for bit."""

import pytest
import torch
from torch import nn

import reference as ref
from coterie.core.tree import shift
from coterie.methods import FedAvg, FedPer
from coterie.models.module import Own
from coterie.streams import torch_seeded


def test_a_round_by_hand():
    setup = ref.setup(FedPer(tau=3, beta=0.2))
    theta, heads = ref.arrays(setup.task.shared_body()), {i: ref.arrays(ref.store(setup)[i]) for i in range(4)}
    assert [len(head["head.bias"]) for head in heads.values()] == [3, 2, 3, 1]
    cohort, arrived = [0, 1, 2], {}
    for i in cohort:
        params = {**theta, **heads[i]}
        for _ in range(3):
            params = ref.step(
                params, ref.loss_and_gradient(params, *ref.examples(setup, i))[1], 0.2, ref.BODY + ref.HEAD
            )
        arrived[i] = params
    sizes = setup.federation.sizes()
    total = sum(sizes[i] for i in cohort)
    store, shared, rnd = ref.store(setup), setup.task.shared_body(), ref.announced(setup, 3)
    for i in cohort:
        reply = setup.method.local_update(setup.task, shared, store[i], setup.data(i, "train", 1), rnd)
        assert reply.tensors.keys() == set(ref.BODY)  # no head travels
        assert reply.numbers.keys() == {"loss"}
        ref.assert_same(shift(shared, reply.tensors), {name: arrived[i][name] for name in ref.BODY})
    played = ref.play(setup, shared, {}, store, cohort, rnd)
    ref.assert_same(
        played.shared, {name: sum(sizes[i] / total * arrived[i][name] for i in cohort) for name in ref.BODY}
    )
    for i in cohort:
        ref.assert_same(store[i], {name: arrived[i][name] for name in ref.HEAD})
    ref.assert_same(store[3], heads[3], 0)


@pytest.mark.parametrize("batch_size", [0, 2])
def test_with_an_empty_head_it_is_fedavg_to_the_bit(batch_size):
    with torch_seeded(0):
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5))
    trees = []
    for method in (FedPer(tau=3, beta=0.2, batch_size=batch_size), FedAvg(tau=3, eta=0.2, batch_size=batch_size)):
        setup = ref.setup(method, model=Own(net=net, head_name="", labels="global"))
        assert setup.task.head == ()
        shared, store = method.init_shared(setup.task), ref.store(setup)
        played = ref.play(setup, shared, {}, store, [0, 1, 2], ref.announced(setup, 3))
        assert store[0] == {}
        trees.append({**played.shared, "loss": torch.tensor(played.loss)})
        trees.append(method.adapt(setup.task, shared, store[1], setup.data(1, "train", 0), 4))
    for per, plain in zip(trees[:2], trees[2:], strict=True):
        assert per.keys() == plain.keys()
        assert all(torch.equal(per[name], plain[name]) for name in plain)


def test_adaptation_is_a_visit_whose_body_stays():
    setup = ref.setup(FedPer(tau=3, beta=0.2))
    shared, personal, data = setup.task.shared_body(), ref.store(setup)[0], setup.data(0, "train", 1)
    sent, _, head, _ = setup.method.local_update(setup.task, shared, personal, data, ref.announced(setup, 1))
    adapted = setup.method.adapt(setup.task, shared, personal, data, 3)
    ref.assert_same(adapted, ref.arrays({**shift(shared, sent), **head}), 1e-15)
