"""Random representations: a head that begins by drawing from the normal distributions that its features describe.

The body ends in 2 d features of each example, the mean μ of d numbers and what their deviation σ = softplus(raw) is
computed from. In training the head sees z = μ + σ ε with fresh standard normal ε, and in use it sees μ.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


class Normal(NamedTuple):
    """Independent normal distributions."""

    mean: Tensor
    deviation: Tensor

    def draw(self) -> Tensor:
        """Draw once from each, with torch's generator."""
        return self.mean + self.deviation * torch.randn_like(self.mean)

    def divergence(self, other: "Normal") -> Tensor:
        """Return KL(self || other) of each pair."""
        ratio = self.deviation / other.deviation
        return (ratio**2 + ((self.mean - other.mean) / other.deviation) ** 2 - 1) / 2 - ratio.log()


class Gaussian(nn.Module):
    """First layer of a head: draws a representation in training, and returns its mean in use."""

    def forward(self, features: Tensor) -> Tensor:
        """Map features (..., 2 d) to representations (..., d)."""
        normal = normal_of(features)
        return normal.draw() if self.training else normal.mean


def normal_of(features: Tensor) -> Normal:
    """Return the distributions that features describe."""
    mean, raw = features.chunk(2, -1)
    return Normal(mean, softplus(raw))
