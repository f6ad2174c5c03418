"""CIFAR-10 network of the PFLEGO paper, Table 4. Input: images, (H, W) or (C, H, W).

Body: two blocks of a 5x5 convolution with 64 filters that keeps the size, ReLU, and a 3x3 max-pool with stride 2 that
halves the size, rounding up: 32 -> 16 -> 8. Dense layers with ReLU follow, 4096 -> 384 -> 192. This gives 192
features. Head: one linear layer.
The output shapes of these layers in the table (20 channels; 1280, 800 and 500 units) contradict its kernel column. The
kernel column is used here, because Section 4.1 and M = 192 in Table 5 confirm it.
Deviation: ReLU comes after the pool, as in conv4. The two also commute if windows overlap.
"""

from torch import nn

from coterie.models.images import channels_first
from coterie.models.model import Model, body_and_head
from coterie.settings import settings

FILTERS = 64
DENSE = (384, 192)


@settings
class CNNCifar(Model):
    """Two 5x5 convolutions with 3x3 max-pool, two dense layers: the PFLEGO paper's network for CIFAR-10."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers, channels, height, width = channels_first("cnn-cifar", shape)
        for _ in range(2):
            layers += [nn.Conv2d(channels, FILTERS, 5, padding=2), same_pool(height, width), nn.ReLU()]
            channels = FILTERS
            height = (height + 1) // 2
            width = (width + 1) // 2
        layers.append(nn.Flatten())
        features = channels * height * width
        for units in DENSE:
            layers += [nn.Linear(features, units), nn.ReLU()]
            features = units
        return body_and_head(layers, features, num_outputs)


def same_pool(height: int, width: int) -> nn.MaxPool2d:
    """Return a 3x3 max-pool with stride 2 and "SAME" padding: one at both ends of an odd side, one at the far end of an
    even side.

    `padding` applies to both ends. `ceil_mode` lets the last window extend over the far edge.
    """
    return nn.MaxPool2d(3, stride=2, padding=(height % 2, width % 2), ceil_mode=True)
