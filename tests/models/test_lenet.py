"""The LeNets of Table 2 of the Scafflix paper: parameters, layers, and the random representation."""

import pytest
import torch

from coterie.core.gaussian import Gaussian
from coterie.core.task import Task
from coterie.errors import UserError
from coterie.measure.probe import Probe
from coterie.models.lenet import LeNet
from coterie.streams import torch_seeded

CIFAR, FASHION = (3, 32, 32), (28, 28)


def task(shape, outputs, **options):
    model = LeNet(**options)
    with torch_seeded(0):
        return Task(model.build(shape, outputs), model.head, torch.rand(1, *shape))


@pytest.mark.parametrize(
    ("options", "shape", "outputs", "parameters", "head"),
    [
        ({}, CIFAR, 100, 2_898_852, 102_500),
        ({"variant": "fashion-mnist"}, FASHION, 10, 1_258_798, 10_250),
        ({"latent": 512}, CIFAR, 100, 3_897_252, 51_300),
    ],
)
def test_parameters(options, shape, outputs, parameters, head):
    cut = task(shape, outputs, **options)
    assert sum(value.numel() for value in cut.initial.values()) == parameters
    assert sum(cut.initial[name].numel() for name in cut.head) == head
    drawn = cut.new_head(7, seed=0)
    assert {value.shape[0] for value in drawn.values()} == {7}


@pytest.mark.parametrize(
    ("options", "shape", "outputs", "products"),
    [
        ({}, CIFAR, 100, 28**2 * 64 * 75 + 10**2 * 64 * 1600 + 1600 * 1024 + 1024**2 + 1024 * 100),
        ({"variant": "fashion-mnist"}, FASHION, 10, 24**2 * 4 * 25 + 8**2 * 12 * 100 + 192 * 1024 + 1024**2 + 10_240),
    ],
)
def test_products_of_a_forward_pass(options, shape, outputs, products):
    flops = Probe(task(shape, outputs, **options)).flops(outputs)
    assert flops.body_forward + flops.head_step / 2 == 2 * products


def test_the_small_variant_has_no_relu_between_its_convolutions():
    net = LeNet(variant="fashion-mnist").build(FASHION, 10)
    kinds = [type(part).__name__ for part in net.body]
    pools = ["Conv2d", "MaxPool2d"] * 2
    assert kinds == ["Unflatten", "Scaled", *pools, "Flatten", *["Linear", "ReLU"] * 2]
    kinds = [type(part).__name__ for part in LeNet(latent=8).build(CIFAR, 10).body]
    assert kinds == ["Scaled", *["Conv2d", "MaxPool2d", "ReLU"] * 2, "Flatten", *["Linear", "ReLU"] * 2, "Linear"]


def test_a_random_representation_is_drawn_in_training_only():
    cut = task(FASHION, 10, variant="fashion-mnist", latent=5, hidden=16)
    assert (cut.is_gaussian, cut.is_random, cut.mixes_examples, cut.chain) == (True, True, False, None)
    x = torch.rand(3, *FASHION, generator=torch.Generator().manual_seed(0))
    features = cut.features(cut.initial, x)
    mean, raw = features[:, :5], features[:, 5:]
    W, b = (cut.initial[name] for name in cut.head)
    torch.testing.assert_close(cut.outputs(cut.initial, x), mean @ W.T + b)
    with torch_seeded(1):
        outputs, _ = cut.training_outputs(cut.initial, x)
    with torch_seeded(1):
        z = mean + torch.log1p(raw.exp()) * torch.randn(3, 5)
    torch.testing.assert_close(outputs, z @ W.T + b)
    assert not task(FASHION, 10, variant="fashion-mnist", hidden=16).is_gaussian


def test_draws_have_the_mean_and_deviation_that_features_describe():
    layer, features = Gaussian(), torch.tensor([2.0, -1.0, 0.5, -2.0]).expand(200_000, 4)
    with torch_seeded(0):
        z = layer(features)
    torch.testing.assert_close(z.mean(0), torch.tensor([2.0, -1.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(z.std(0), torch.log1p(torch.tensor([0.5, -2.0]).exp()), atol=0.01, rtol=0)


def test_pixels_are_scaled_and_the_scale_is_no_parameter():
    cut = task(FASHION, 10, variant="fashion-mnist", hidden=16)
    assert not [name for name in cut.initial if "mean" in name or "deviation" in name]
    net = cut.module(cut.initial)
    grey = torch.full((1, *FASHION), 0.75)
    torch.testing.assert_close(net.body[1](net.body[0](grey)), torch.full((1, 1, *FASHION), 0.5))
    with pytest.raises(UserError, match=r'model\.variant = "cifar" takes images with 3 channels, but these have 1'):
        LeNet().build(FASHION, 10)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(UserError, match="lenet takes images of at least 16 x 16 pixels"):
        LeNet().build((3, 15, 16), 10)
