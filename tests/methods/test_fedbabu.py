"""FedBABU against its paper: a round by hand in NumPy, a head that nobody trains, and its fine-tuning."""

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie.core.tree import shift
from coterie.errors import UserError
from coterie.methods import FedBABU
from coterie.models.mlp import MLP
from coterie.models.module import Own


def heavy_ball(params, x, y, steps, rate, momentum, names):
    velocity = {name: np.zeros_like(params[name]) for name in names}
    for _ in range(steps):
        _, gradient = ref.loss_and_gradient(params, x, y)
        velocity = {name: momentum * velocity[name] + gradient[name] for name in names}
        params = ref.step(params, velocity, rate, names)
    return params


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_rounds_by_hand(momentum):
    setup = ref.setup(FedBABU(tau=4, beta=0.1, momentum=momentum))
    shared, sizes = setup.method.init_shared(setup.task), setup.federation.sizes()
    params = ref.arrays(shared)
    for index, cohort in enumerate(([0, 2, 3], [1, 2]), start=1):
        arrived, rnd = {}, ref.announced(setup, 3, index)
        for i in cohort:
            arrived[i] = heavy_ball(params, *ref.examples(setup, i), 4, 0.1, momentum, ref.BODY)
            reply = setup.method.local_update(setup.task, shared, {}, setup.data(i, "train", index), rnd)
            assert reply.tensors.keys() == set(ref.BODY)  # the head is not sent back
            assert reply.numbers.keys() == {"loss"}
            assert reply.personal == {}
            ref.assert_same(shift(shared, reply.tensors), arrived[i])
        total = sum(sizes[i] for i in cohort)
        params = {name: sum(sizes[i] / total * arrived[i][name] for i in cohort) for name in params}
        after = ref.play(setup, shared, {}, ref.store(setup), cohort, rnd).shared
        ref.assert_same(after, params)
        assert all(torch.equal(after[name], shared[name]) for name in ref.HEAD)
        shared = after


@pytest.mark.parametrize(("hidden", "outputs"), [(8, 5), (5, 5), (3, 5)])
def test_the_head_is_orthogonal_and_drawn_from_the_seed(hidden, outputs):
    """Rows are orthonormal, or columns if there are more rows than columns."""
    setup = ref.setup(FedBABU(), model=MLP(hidden=[hidden]))
    W = setup.method.init_shared(setup.task)["head.weight"].numpy()
    assert W.shape == (outputs, hidden)
    gram = W @ W.T if hidden >= outputs else W.T @ W
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)
    drawn = setup.task.initial["head.weight"].numpy()
    np.testing.assert_allclose(np.linalg.matrix_rank(np.vstack([W, drawn])), min(W.shape))  # it spans what was drawn
    assert (np.abs(W) > 1e-3).all()


def test_in_a_deep_head_each_layer_is_orthogonal():
    head = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 5))
    model = Own(net=nn.Sequential(nn.Linear(4, 3), nn.ReLU(), head), head_name="2")
    setup = ref.setup(FedBABU(), model=model)
    shared = setup.method.init_shared(setup.task)
    for name in ("2.0.weight", "2.2.weight"):  # both are taller than wide
        W = shared[name].numpy()
        np.testing.assert_allclose(W.T @ W, np.eye(W.shape[1]), atol=1e-12)
    for name in ("0.weight", "2.1.weight", "2.0.bias"):
        assert torch.equal(shared[name], setup.task.initial[name])


def test_a_model_without_a_head_is_refused():
    with pytest.raises(UserError, match=r"FedBABU needs a model with a head.*head="):
        ref.setup(FedBABU(), model=Own(net=nn.Linear(4, 5), head_name=""))


def test_fine_tuning_moves_the_clients_own_head_only():
    setup = ref.setup(FedBABU(beta=0.3, momentum=0.5))
    shared = setup.method.init_shared(setup.task)
    params = heavy_ball(ref.arrays(shared), *ref.examples(setup, 0), 5, 0.3, 0.5, ref.HEAD)
    adapted = setup.method.adapt(setup.task, shared, {}, setup.data(0, "train", 0), 5)
    ref.assert_same(adapted, {name: params[name] for name in ref.HEAD})
    used = setup.method.personal_params(setup.task, shared, adapted)
    ref.assert_same(used, params)
