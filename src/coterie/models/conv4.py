"""The Omniglot network of the PFLEGO paper, Table 4. Input: images, (H, W) or (C, H, W), 16 pixels a side or more.

Body: four times a 3x3 convolution that keeps the size, ReLU, a 2x2 max-pool: 28 -> 14 -> 7 -> 3 -> 1, so 64 features.
Head: one linear layer. No batch norm, unlike the network of Finn et al. that the paper refers to.
Deviation: ReLU comes after the pool, where it has a quarter of the values to look at. The two commute, in values and in
gradients, and a pass of the body takes about half the time.
"""

from torch import nn

from coterie.errors import UserError
from coterie.models.model import Model
from coterie.settings import Count, settings

BLOCKS = 4


@settings
class Conv4(Model):
    """Four 3x3 convolutions with ReLU and 2x2 max-pool: the PFLEGO paper's net for Omniglot."""

    filters: Count = 64
    """Channels of each convolution."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        if len(shape) not in (2, 3) or min(shape[-2:]) < 2**BLOCKS:
            raise UserError(
                f"the model conv4 takes images of at least 16 x 16 pixels, as (H, W) or (C, H, W); these inputs have "
                f"the shape {shape}"
            )
        height, width = shape[-2:]
        layers: list[nn.Module] = [nn.Unflatten(1, (1, height))] if len(shape) == 2 else []
        channels = 1 if len(shape) == 2 else shape[0]
        for _ in range(BLOCKS):
            layers += [nn.Conv2d(channels, self.filters, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
            channels, height, width = self.filters, height // 2, width // 2
        net = nn.Sequential()
        net.add_module("body", nn.Sequential(*layers, nn.Flatten()))
        net.add_module("head", nn.Linear(channels * height * width, num_outputs))
        return net
