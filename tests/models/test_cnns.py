"""The networks match the papers in every parameter, and reject unsuitable inputs."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie import registry
from coterie.core.task import Task
from coterie.errors import UserError
from coterie.measure.probe import Probe
from coterie.models.cnn_cifar import CNNCifar, same_pool
from coterie.models.cnn_dropout import CNNDropout
from coterie.models.cnn_femnist import CNNFemnist
from coterie.streams import torch_seeded

CIFAR, FEMNIST = (3, 32, 32), (28, 28)


def task(model, shape, outputs):
    with torch_seeded(0):
        return Task(model.build(shape, outputs), model.head, torch.rand(1, *shape))


def count(tree, names):
    return sum(tree[name].numel() for name in names)


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "body", "head", "features"),
    [
        ("cnn-cifar", CIFAR, 10, 4_864 + 102_464 + 1_573_248 + 73_920, 1_930, 192),
        ("cnn-femnist", FEMNIST, 62, 832 + 64 + 51_264 + 128 + 6_424_576, 127_038, 2048),
        ("cnn-dropout", FEMNIST, 62, 320 + 18_496 + 1_179_776, 7_998, 128),
    ],
)
def test_parameters_of_body_and_head(name, shape, outputs, body, head, features):
    cut = task(registry.load("model", name)(), shape, outputs)
    assert count(cut.initial, cut.body) == body
    assert cut.head == ("head.weight", "head.bias")
    assert count(cut.initial, cut.head) == head
    assert cut.num_outputs == outputs
    assert cut.new_head(3, seed=0)["head.weight"].shape == (3, features)


@pytest.mark.parametrize(
    ("model", "parameters", "products"), [(CNNFemnist(), 6_603_902, 17_211_904), (CNNDropout(), 1_206_590, 11_999_104)]
)
def test_parameters_and_products_of_a_forward_pass(model, parameters, products):
    cut = task(model, FEMNIST, 62)
    assert count(cut.initial, cut.body + cut.head) == parameters
    flops = Probe(cut).flops(62)
    assert (
        flops.body_forward + flops.head_step / 2 == 2 * products
    )  # a step of the head: one forward pass, and a backward pass of the same cost


def test_what_an_engine_must_know_of_them():
    cifar, femnist, dropout = (
        task(CNNCifar(), CIFAR, 10),
        task(CNNFemnist(), FEMNIST, 62),
        task(CNNDropout(), FEMNIST, 62),
    )
    assert [cut.is_random for cut in (cifar, femnist, dropout)] == [False, False, True]
    assert [cut.mixes_examples for cut in (cifar, femnist, dropout)] == [False, True, False]
    assert [len(cut.buffers) for cut in (cifar, femnist, dropout)] == [0, 6, 0]


@pytest.mark.parametrize(
    ("model", "shape", "pictures"),
    [
        (CNNCifar(), CIFAR, [(64, 32, 32), (64, 16, 16), (64, 16, 16), (64, 8, 8)]),
        (CNNCifar(), (7, 10), [(64, 7, 10), (64, 4, 5), (64, 4, 5), (64, 2, 3)]),
        (CNNCifar(), (1, 1, 1), [(64, 1, 1)] * 4),
        (CNNFemnist(), FEMNIST, [(32, 28, 28), (32, 14, 14), (64, 14, 14), (64, 7, 7)]),
        (CNNFemnist(), (2, 4, 7), [(32, 4, 7), (32, 2, 3), (64, 2, 3), (64, 1, 1)]),
        (CNNDropout(), FEMNIST, [(32, 26, 26), (64, 24, 24), (64, 12, 12)]),
        (CNNDropout(), (2, 6, 9), [(32, 4, 7), (64, 2, 5), (64, 1, 2)]),
    ],
)
def test_sizes_of_the_pictures(model, shape, pictures):
    net = model.build(shape, 5)
    x, sizes = torch.rand(2, *shape), []
    for layer in net.body:
        x = layer(x)
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == pictures
    assert net.head(x).shape == (2, 5)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (16, 7), (5, 4), (2, 1), (1, 3)])
def test_the_pool_pads_as_same_does(height, width):
    x = -1 - np.random.default_rng(0).random((2, 3, height, width))  # zeros from padding would be the maximum
    sides = [-(-side // 2) for side in (height, width)]
    before = [max(2 * (out - 1) + 3 - side, 0) // 2 for side, out in zip((height, width), sides, strict=True)]
    expected = np.empty((2, 3, *sides))
    for i, j in np.ndindex(*sides):
        top, left = 2 * i - before[0], 2 * j - before[1]
        expected[:, :, i, j] = x[:, :, max(top, 0) : top + 3, max(left, 0) : left + 3].max((2, 3))
    np.testing.assert_array_equal(same_pool(height, width)(torch.from_numpy(x)).numpy(), expected)


PRINTED = {
    "cnn-cifar": lambda a, b, c, d: [
        *(a, nn.ReLU(), nn.ConstantPad2d((0, 1, 0, 1), -torch.inf), nn.MaxPool2d(3, 2)),
        *(b, nn.ReLU(), nn.ConstantPad2d((0, 1, 0, 1), -torch.inf), nn.MaxPool2d(3, 2)),
        *(nn.Flatten(), c, nn.ReLU(), d, nn.ReLU()),
    ],
    "cnn-femnist": lambda a, m, b, n, c: [
        *(a, m, nn.ReLU(), nn.MaxPool2d(2), b, n, nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), c, nn.ReLU()),
    ],
    "cnn-dropout": lambda a, b, c: [
        *(a, nn.ReLU(), b, nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), c, nn.ReLU(), nn.Dropout(0.5)),
    ],
}


@pytest.mark.parametrize("name", PRINTED)
def test_layers_in_the_papers_order_give_the_same(name):
    """Return the outputs, gradients and buffers of a training pass with fixed dropout masks."""
    passes = []
    for in_our_order in (True, False):
        with torch_seeded(1):
            net = registry.load("model", name)().build((2, 12, 12), 5).double()
            x = torch.rand(3, 2, 12, 12, dtype=torch.float64) - 0.5
        learned = [layer for layer in net.body if list(layer.parameters())]
        printed = nn.Sequential(*PRINTED[name](*learned), net.head)
        with torch_seeded(2):
            outputs = (net if in_our_order else printed)(x)
        gradients = torch.autograd.grad(outputs.logsumexp(1).sum(), list(net.parameters()))
        passes.append((outputs, *gradients, *net.buffers()))
    for ours, theirs in zip(*passes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (CNNCifar(), (3072,), "cnn-cifar takes images, as .*shape"),
        (CNNCifar(), (2, 3, 32, 32), "cnn-cifar takes images, as .*shape"),
        (CNNFemnist(), (28, 3), "cnn-femnist takes images of at least 4 x 4 .*shape"),
        (CNNFemnist(), (784,), "cnn-femnist takes images of at least 4 x 4 .*shape"),
        (CNNDropout(), (1, 5, 28), "cnn-dropout takes images of at least 6 x 6 .*shape"),
        (CNNDropout(), (2, 3, 28, 28), "cnn-dropout takes images of at least 6 x 6 .*shape"),
    ],
)
def test_inputs_they_cannot_take(model, shape, message):
    with pytest.raises(UserError, match=message):
        model.build(shape, 5)
