"""Omniglot network of the PFLEGO paper, Table 4. Input: images, (H, W) or (C, H, W), with sides of at least 16 pixels.

Body: four blocks of a 3x3 convolution that keeps the size, ReLU and a 2x2 max-pool: 28 -> 14 -> 7 -> 3 -> 1. This gives
64 features. Head: one linear layer. There is no batch norm, unlike in the network of Finn et al. that the paper cites.
Deviation: ReLU comes after the pool, where it processes only a quarter of the values. The two commute, in values and in
gradients, and a pass through the body takes about half the time.
"""

from torch import nn

from coterie.models.images import channels_first
from coterie.models.model import Model, body_and_head
from coterie.settings import Count, settings

BLOCKS = 4


@settings
class Conv4(Model):
    """Four 3x3 convolutions with ReLU and 2x2 max-pool: the PFLEGO paper's network for Omniglot."""

    filters: Count = 64
    """Number of channels of each convolution."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers, channels, height, width = channels_first("conv4", shape, 2**BLOCKS)
        for _ in range(BLOCKS):
            layers += [nn.Conv2d(channels, self.filters, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
            channels = self.filters
            height //= 2
            width //= 2
        return body_and_head([*layers, nn.Flatten()], channels * height * width, num_outputs)
