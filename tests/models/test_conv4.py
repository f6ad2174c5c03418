"""The network matches the paper's Table 4, and rejects unsuitable inputs."""

import pytest
import torch
from torch import nn

from coterie.core.task import Task
from coterie.errors import UserError
from coterie.models.conv4 import Conv4


@pytest.mark.parametrize(("shape", "features"), [((28, 28), 64), ((1, 28, 28), 64), ((3, 32, 48), 384), ((16, 16), 64)])
def test_shapes(shape, features):
    net = Conv4().build(shape, 55)
    x = torch.rand(2, *shape)
    assert net.body(x).shape == (2, features)
    assert net(x).shape == (2, 55)


def test_the_pictures_of_table_4():
    sizes, x = [], torch.rand(2, 28, 28)
    for layer in Conv4().build((28, 28), 55).body:
        x = layer(x)
        if isinstance(layer, nn.MaxPool2d):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [(64, 14, 14), (64, 7, 7), (64, 3, 3), (64, 1, 1)]


def test_the_number_of_parameters():
    net = Conv4().build((28, 28), 55)
    first, others = 64 * 9 + 64, 64 * 64 * 9 + 64
    assert sum(p.numel() for p in net.body.parameters()) == first + 3 * others == 111_424
    assert sum(p.numel() for p in net.head.parameters()) == 55 * 64 + 55


def test_the_head_is_the_last_layer():
    model = Conv4(filters=4)
    task = Task(model.build((28, 28), 5), model.head, torch.rand(1, 28, 28))
    assert task.head == ("head.weight", "head.bias")
    assert len(task.body) == 8
    assert task.num_outputs == 5
    assert task.new_head(3, seed=0)["head.weight"].shape == (3, 4)


def test_relu_and_pool_commute():
    net = Conv4(filters=4).build((28, 28), 5).double()
    layers = list(net.body)
    as_printed = [layers[0]]
    for conv, pool, relu in zip(layers[1:-1:3], layers[2:-1:3], layers[3:-1:3], strict=True):
        as_printed += [conv, relu, pool]
    printed = nn.Sequential(*as_printed, layers[-1], net.head)
    x = torch.rand(3, 28, 28, dtype=torch.float64) - 0.5
    gradients = []
    for each in (net, printed):
        outputs = each(x)
        gradients.append(torch.autograd.grad(outputs.logsumexp(1).sum(), list(net.parameters())))
    assert torch.equal(net(x), printed(x))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(15, 28), (1, 28, 12), (784,), (2, 3, 28, 28)])
def test_inputs_it_cannot_take(shape):
    with pytest.raises(UserError, match=r"conv4 takes images of at least 16 x 16 .*shape"):
        Conv4().build(shape, 5)
