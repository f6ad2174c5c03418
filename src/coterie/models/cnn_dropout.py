"""FEMNIST network of the Scafflix paper. Input: images, (H, W) or (C, H, W), with sides of at least 6 pixels.

Body: two 3x3 convolutions without padding, with 32 and then 64 filters and ReLU; a 2x2 max-pool: 28 -> 26 -> 24 -> 12;
dropout of 0.25; a dense layer with ReLU, 9216 -> 128; dropout of 0.5. Head: one linear layer.
The paper only gives the number of layers and refers to FedJAX. The rest is FedJAX's network for these data.
Deviation: the second ReLU comes after the pool, as in conv4.
"""

from torch import nn

from coterie.models.images import channels_first
from coterie.models.model import Model, body_and_head
from coterie.settings import settings

FILTERS = (32, 64)
FEATURES = 128


@settings
class CNNDropout(Model):
    """Two 3x3 convolutions with 2x2 max-pool, a dense layer, dropout: the Scafflix paper's network for FEMNIST."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers, channels, height, width = channels_first("cnn-dropout", shape, 6)
        first, second = FILTERS
        layers += [nn.Conv2d(channels, first, 3), nn.ReLU()]
        layers += [nn.Conv2d(first, second, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.25), nn.Flatten()]
        layers += [nn.Linear(second * ((height - 4) // 2) * ((width - 4) // 2), FEATURES), nn.ReLU(), nn.Dropout(0.5)]
        return body_and_head(layers, FEATURES, num_outputs)
