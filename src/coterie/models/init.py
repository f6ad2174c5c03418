"""How the initial network is drawn, from the torch generator's present stream.

"default" is as PyTorch draws each layer. "glorot-normal" is as stax, the library of the PFLEGO authors' code, does it;
their paper does not say how networks are drawn:

    W of dense layers and convolutions   normal with variance 2 / (fan-in + fan-out), truncated at two standard
                                         deviations of the normal before truncation
    b of dense layers                    normal with standard deviation 0.01
    b of convolutions                    normal with standard deviation 1e-6

and other layers as PyTorch draws them; the gates of an LSTM count as dense.
"""

import math

from torch import nn

from coterie.models.model import Model

TRUNCATED = 0.8796256610342398
"""The standard deviation of a standard normal that is truncated at -2 and 2."""
DENSE_BIAS, CONVOLUTION_BIAS = 1e-2, 1e-6


def draw(model: Model, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The model's network, body and head, with the initial values that `model.init` asks for."""
    net = model.build(shape, num_outputs)
    if model.init == "glorot-normal":
        for layer in net.modules():
            if isinstance(layer, nn.Linear):
                _glorot_normal(layer, DENSE_BIAS)
            elif isinstance(layer, nn.modules.conv._ConvNd):
                _glorot_normal(layer, CONVOLUTION_BIAS)
    return net


def _glorot_normal(layer: nn.Linear | nn.modules.conv._ConvNd, bias: float) -> None:
    kernel_size = layer.weight[0, 0].numel()  # one, where it is a matrix
    fans = kernel_size * sum(layer.weight.shape[:2])
    std = math.sqrt(2 / fans) / TRUNCATED
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=bias)
