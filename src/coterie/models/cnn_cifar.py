"""The CIFAR-10 network of the PFLEGO paper, Table 4. Input: images, (H, W) or (C, H, W).

Body: twice a 5x5 convolution with 64 filters that keeps the size, ReLU, a 3x3 max-pool with stride 2 that halves it,
rounding up: 32 -> 16 -> 8; then dense layers with ReLU, 4096 -> 384 -> 192, so 192 features. Head: one linear layer.
The table's output shapes of these layers (20 channels; 1280, 800 and 500 units) contradict its kernel column; the
latter is built here, as Section 4.1 and the M = 192 of Table 5 confirm it.
Deviation: ReLU comes after the pool, as in conv4; the two commute also where windows overlap.
"""

from torch import nn

from coterie.models.images import channels_first
from coterie.models.model import Model, body_and_head
from coterie.settings import settings

FILTERS = 64
DENSE = (384, 192)


@settings
class CNNCifar(Model):
    """Two 5x5 convolutions with 3x3 max-pool, two dense layers: the PFLEGO paper's net for CIFAR-10."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers, channels, height, width = channels_first("cnn-cifar", shape)
        for _ in range(2):
            layers += [nn.Conv2d(channels, FILTERS, 5, padding=2), same_pool(height, width), nn.ReLU()]
            channels, height, width = FILTERS, (height + 1) // 2, (width + 1) // 2
        layers.append(nn.Flatten())
        features = channels * height * width
        for units in DENSE:
            layers += [nn.Linear(features, units), nn.ReLU()]
            features = units
        return body_and_head(layers, features, num_outputs)


def same_pool(height: int, width: int) -> nn.MaxPool2d:
    """A 3x3 max-pool with stride 2, padded as "SAME" is: an odd side by one at both ends, an even one at its far end.

    `padding` is what both ends have; with `ceil_mode` the last window may reach over the far edge.
    """
    return nn.MaxPool2d(3, stride=2, padding=(height % 2, width % 2), ceil_mode=True)
