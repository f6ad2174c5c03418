"""The Omniglot network of the PFLEGO paper, Table 4. Input: images, (H, W) or (C, H, W), 16 pixels a side or more.

Body: four times a 3x3 convolution that keeps the size, ReLU, a 2x2 max-pool: 28 -> 14 -> 7 -> 3 -> 1, so 64 features.
Head: one linear layer. No batch norm, unlike the network of Finn et al. that the paper refers to.
Deviation: ReLU comes after the pool, where it has a quarter of the values to look at. The two commute, in values and in
gradients, and a pass of the body takes about half the time.
"""

from torch import nn

from coterie.models.images import channels_first
from coterie.models.model import Model, body_and_head
from coterie.settings import Count, settings

BLOCKS = 4


@settings
class Conv4(Model):
    """Four 3x3 convolutions with ReLU and 2x2 max-pool: the PFLEGO paper's net for Omniglot."""

    filters: Count = 64
    """Channels of each convolution."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers, channels, height, width = channels_first("conv4", shape, 2**BLOCKS)
        for _ in range(BLOCKS):
            layers += [nn.Conv2d(channels, self.filters, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
            channels, height, width = self.filters, height // 2, width // 2
        return body_and_head([*layers, nn.Flatten()], channels * height * width, num_outputs)
