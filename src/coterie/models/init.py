"""Initialization of networks, with random numbers from torch's current generator.

"default" initializes each layer as PyTorch does. "glorot-normal" follows stax, the library used in the PFLEGO authors'
code; their paper does not describe the initialization:

    W of dense layers and convolutions   normal with variance 2 / (fan-in + fan-out), truncated at two standard
                                         deviations of the normal before truncation
    b of dense layers                    normal with standard deviation 0.01
    b of convolutions                    normal with standard deviation 1e-6

Other layers are initialized as PyTorch does. The gates of an LSTM count as dense layers.
"""

import math

from torch import nn

from coterie.errors import UserError
from coterie.models.model import Model

TRUNCATED = 0.8796256610342398
"""Standard deviation of a standard normal distribution truncated at -2 and 2."""
DENSE_BIAS, CONVOLUTION_BIAS = 1e-2, 1e-6


def draw(model: Model, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """Build the network of a model, with initial values as set by `model.init`."""
    try:
        net = model.build(shape, num_outputs)
    except (RuntimeError, MemoryError, OverflowError) as error:
        raise UserError(
            f"the model cannot be built for inputs of shape {shape} and {num_outputs} outputs: {error}; are its "
            "settings too large for the memory?"
        ) from None
    if not model.head_bias:
        head = net.get_submodule(model.head)
        assert isinstance(head, nn.Linear)
        head.register_parameter("bias", None)
    if model.init == "glorot-normal":
        for layer in net.modules():
            if isinstance(layer, nn.Linear):
                _glorot_normal(layer, DENSE_BIAS)
            elif isinstance(layer, nn.modules.conv._ConvNd):
                _glorot_normal(layer, CONVOLUTION_BIAS)
    return net


def _glorot_normal(layer: nn.Linear | nn.modules.conv._ConvNd, bias: float) -> None:
    kernel_size = layer.weight[0, 0].numel()  # 1 if the weight is a matrix
    fans = kernel_size * sum(layer.weight.shape[:2])
    std = math.sqrt(2 / fans) / TRUNCATED
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=bias)
