"""Logistic regression. The input can have any shape and is flattened. Only the head has parameters."""

from math import prod

from torch import nn

from coterie.models.model import Model, body_and_head
from coterie.settings import settings


@settings
class LogReg(Model):
    """Multinomial logistic regression. It is convex, and its body has no parameters."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        return body_and_head([nn.Flatten()], prod(shape), num_outputs)
