"""LeNets of FedCR's public code, which made Table 2 of the Scafflix paper. Input: images, (H, W) or (C, H, W).

Body: fixed scaling of the pixels, which are given in [0, 1]; two 5x5 convolutions without padding, each with a 2x2
max-pool; two dense layers with ReLU. Head: one linear layer.

    variant          filters    after a convolution    image         dense                  pixels
    "cifar"          64, 64     pool, ReLU             3 x 32 x 32   1600 -> 1024 -> 1024   mean 0 and variance 1
    "fashion-mnist"  4, 12      pool                   28 x 28       192 -> 1024 -> 1024    from -1 to 1

With `latent` = d the body has a further linear layer, 1024 -> 2 d, and the head begins with a `Gaussian`: the outputs
are a linear function of d numbers, which are drawn in training (`core/gaussian.py`). FedSR and FedCR need this.
With `augment`, the body begins by moving training images by up to four pixels and mirroring half of them, as that code
does for CIFAR-100. Each pass through the body has its own draws, and steps on the head alone see the features of one
pass.
Deviation: ReLU comes after the pool, as in conv4.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from coterie.core.gaussian import Gaussian
from coterie.errors import UserError
from coterie.models.images import CropAndFlip, channels_first
from coterie.models.model import Model, body_and_head
from coterie.settings import Count, Size, settings


class Variant(NamedTuple):
    """What differs between the networks for two kinds of images."""

    filters: tuple[int, int]
    relu: bool
    mean: tuple[float, ...]
    """Mean of the pixels of each channel."""
    deviation: tuple[float, ...]


VARIANTS = {
    "cifar": Variant((64, 64), True, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "fashion-mnist": Variant((4, 12), False, (0.5,), (0.5,)),
}


MARGIN = 4
"""Largest number of pixels by which an image is moved."""


class Scaled(nn.Module):
    """Fixed scaling of each channel."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.mean, self.deviation = (
            nn.Parameter(torch.tensor(value)[:, None, None], requires_grad=False) for value in (mean, deviation)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map pixels (N, C, H, W) to their distance from the mean, in deviations."""
        return (x - self.mean) / self.deviation


@settings
class LeNet(Model):
    """Two 5x5 convolutions, two dense layers, optionally a random representation: the networks of Scafflix, Table 2."""

    variant: Literal["cifar", "fashion-mnist"] = "cifar"
    """Convolutions: 64 and 64 filters with ReLU ("cifar"), or 4 and 12 filters without ("fashion-mnist")."""
    hidden: Count = 1024
    """Number of units in each of the two dense layers."""
    latent: Size = 0
    """Size d of a random representation before the head; 0 omits it. FedSR and FedCR need one."""
    augment: bool = False
    """Whether training images are moved by up to four pixels and mirrored at random in each pass."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers, channels, height, width = channels_first("lenet", shape, 16)
        variant = VARIANTS[self.variant]
        if channels != len(variant.mean):
            raise UserError(
                f'model.variant = "{self.variant}" takes images with {len(variant.mean)} channels, but these have '
                f"{channels}; available: {', '.join(VARIANTS)}"
            )
        layers += [CropAndFlip(MARGIN)] * self.augment
        layers.append(Scaled(variant.mean, variant.deviation))
        for filters in variant.filters:
            layers += [nn.Conv2d(channels, filters, 5), nn.MaxPool2d(2)] + [nn.ReLU()] * variant.relu
            channels, height, width = filters, (height - 4) // 2, (width - 4) // 2
        layers.append(nn.Flatten())
        for inputs in (channels * height * width, self.hidden):
            layers += [nn.Linear(inputs, self.hidden), nn.ReLU()]
        if not self.latent:
            return body_and_head(layers, self.hidden, num_outputs)
        net = body_and_head([*layers, nn.Linear(self.hidden, 2 * self.latent)], self.latent, num_outputs)
        net.set_submodule("head", nn.Sequential(Gaussian(), net.get_submodule("head")))
        return net
