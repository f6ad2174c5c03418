"""FedAvg against its paper: a round by hand in NumPy, and the identities that must hold exactly."""

import numpy as np
import pytest

import reference as ref
from coterie.core.tree import shift
from coterie.methods import FedAvg
from coterie.models.mlp import MLP


def play(setup, cohort, r):
    shared = setup.method.init_shared(setup.task)
    rnd = ref.announced(setup, r)
    sent = {
        i: setup.method.local_update(setup.task, shared, {}, setup.data(i, "train", 1), rnd).tensors for i in cohort
    }
    seen = {i: shift(shared, tensors) for i, tensors in sent.items()}
    return ref.play(setup, shared, {}, ref.store(setup), cohort, rnd), seen


def locally(setup, params, client):
    x, y = ref.examples(setup, client)
    for _ in range(setup.method.tau):
        params = ref.step(params, ref.loss_and_gradient(params, x, y)[1], setup.method.eta, ref.BODY + ref.HEAD)
    return params


def test_a_round_by_hand():
    setup = ref.setup(FedAvg(tau=3, eta=0.2))
    start = ref.arrays(setup.task.shared_model())
    assert start["head.bias"].shape == (5,)  # the union of all classes
    cohort = [0, 2, 3]
    arrived = {i: locally(setup, start, i) for i in cohort}
    sizes = setup.federation.sizes()
    total = sum(sizes[i] for i in cohort)
    expected = {name: sum(sizes[i] / total * arrived[i][name] for i in cohort) for name in start}
    played, seen = play(setup, cohort, r=3)
    ref.assert_same(played.shared, expected)
    for i in cohort:
        ref.assert_same(seen[i], arrived[i])  # the model that `participants` is scored with


def test_clients_may_count_alike():
    setup = ref.setup(FedAvg(tau=2, eta=0.2, users="equal"))
    start = ref.arrays(setup.task.shared_model())
    arrived = [locally(setup, start, i) for i in (0, 3)]  # they have 5 examples and 1 example
    played, _ = play(setup, [0, 3], r=2)
    ref.assert_same(played.shared, {name: (arrived[0][name] + arrived[1][name]) / 2 for name in start})


def test_one_step_of_everyone_is_gradient_descent_on_the_pooled_data():
    setup = ref.setup(FedAvg(tau=1, eta=0.4))
    start = ref.arrays(setup.task.shared_model())
    pooled = [np.concatenate(part) for part in zip(*(ref.examples(setup, i) for i in range(4)), strict=True)]
    loss, gradient = ref.loss_and_gradient(start, *pooled)
    played, _ = play(setup, [0, 1, 2, 3], r=4)
    ref.assert_same(played.shared, ref.step(start, gradient, 0.4, ref.BODY + ref.HEAD))
    assert played.loss == pytest.approx(loss)


def test_a_full_size_minibatch_is_the_whole_client():
    whole, _ = play(ref.setup(FedAvg(tau=3, eta=0.2)), [0, 2], r=2)
    batched, _ = play(ref.setup(FedAvg(tau=3, eta=0.2, batch_size=8)), [0, 2], r=2)
    ref.assert_same(batched.shared, ref.arrays(whole.shared), 0)


def test_minibatches_change_the_path_and_depend_on_the_round():
    setup = ref.setup(FedAvg(tau=4, eta=0.2, batch_size=2))
    shared, personal = setup.task.shared_model(), ref.store(setup)[2]
    replies = []
    for index in (1, 1, 2):
        rnd = ref.announced(setup, 1, index)
        replies.append(setup.method.local_update(setup.task, shared, personal, setup.data(2, "train", index), rnd))
    for one, other in zip(replies[1], replies[0], strict=True):
        ref.assert_same(one, ref.arrays(other), 0)
    assert not np.allclose(replies[2].tensors["head.weight"].numpy(), replies[0].tensors["head.weight"].numpy())


def test_labels_can_be_local_as_in_the_authors_of_pflego():
    """A shared head over local labels has as many outputs as the client with the most classes."""
    setup = ref.setup(FedAvg(), model=MLP(labels="local"))
    assert setup.task.shared_model()["head.bias"].shape == (3,)
