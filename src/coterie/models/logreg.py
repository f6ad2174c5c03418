"""Logistic regression. Input: anything, flattened. The body has no parameters; the head is all there is to learn."""

from math import prod

from torch import nn

from coterie.models.model import Model, body_and_head
from coterie.settings import settings


@settings
class LogReg(Model):
    """Multinomial logistic regression: convex, no shared body."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        return body_and_head([nn.Flatten()], prod(shape), num_outputs)
