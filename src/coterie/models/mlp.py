"""Multilayer perceptron. The input can have any shape and is flattened.

Body: dense layers with ReLU. Head: one linear layer.
"""

from dataclasses import field
from math import prod

from torch import nn

from coterie.models.model import Model, body_and_head
from coterie.settings import Count, settings


@settings
class MLP(Model):
    """Dense layers with ReLU on flattened inputs. hidden = [200] is the PFLEGO paper's network for MNIST-like data."""

    hidden: list[Count] = field(default_factory=lambda: [200])
    """Widths of the layers of the body."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(shape)
        for hidden in self.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        return body_and_head(layers, width, num_outputs)
