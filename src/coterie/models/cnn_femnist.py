"""FEMNIST network of the FedDecay paper. Input: images, (H, W) or (C, H, W), with sides of at least 4 pixels.

Body: two blocks of a 5x5 convolution that keeps the size, with 32 and then 64 filters, batch norm, ReLU, and a 2x2
max-pool: 28 -> 14 -> 7. A dense layer with ReLU follows, 3136 -> 2048. Head: one linear layer.
The paper lists the parts without a strict order. Here batch norm comes before the pool, as in FederatedScope's
convnet2, which was used for the paper's experiments.
Deviation: ReLU comes after the pool, as in conv4.
"""

from torch import nn

from coterie.models.images import channels_first
from coterie.models.model import Model, body_and_head
from coterie.settings import settings

FILTERS = (32, 64)
FEATURES = 2048


@settings
class CNNFemnist(Model):
    """Two 5x5 convolutions with batch norm and 2x2 max-pool, one dense layer: FedDecay's network for FEMNIST."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers, channels, height, width = channels_first("cnn-femnist", shape, 4)
        for filters in FILTERS:
            convolution = nn.Conv2d(channels, filters, 5, padding=2)
            layers += [convolution, nn.BatchNorm2d(filters), nn.MaxPool2d(2), nn.ReLU()]
            channels = filters
            height //= 2
            width //= 2
        layers += [nn.Flatten(), nn.Linear(channels * height * width, FEATURES), nn.ReLU()]
        return body_and_head(layers, FEATURES, num_outputs)
