"""Personal heads, freshly drawn."""

import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.cut import with_outputs
from coterie.streams import torch_seeded
from coterie.tree import Tree

HeadInit = Literal["default", "uniform", "orthogonal"]
KAIMING = math.sqrt(3) * nn.init.calculate_gain("leaky_relu", math.sqrt(5))
"""What nn.Linear divides by the square root of its inputs to bound its weights: one, but for rounding."""


class Heads:
    """Heads like the given one, with as many outputs as are asked for; names begin with `prefix`."""

    def __init__(self, head: nn.Module, prefix: str, init: HeadInit) -> None:
        self._head, self._prefix, self._init = head, prefix, init
        self._generator = torch.Generator()

    def draw(self, num_outputs: int, seed: int) -> Tree:
        if isinstance(self._head, nn.Linear):
            return self._linear(self._head, num_outputs, seed)
        head = self.sized(num_outputs)
        with torch_seeded(seed):
            for part in head.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
            drawn = {self._prefix + name: value.detach().clone() for name, value in head.named_parameters()}
            return {name: self._redrawn(value, torch.default_generator) for name, value in drawn.items()}

    @lru_cache(maxsize=1024)  # noqa: B019 - it lives as long as its run
    def sized(self, num_outputs: int) -> nn.Module:
        """A head of that size; its values mean nothing."""
        with torch_seeded(0):
            return with_outputs(self._head, num_outputs)

    def _linear(self, layer: nn.Linear, num_outputs: int, seed: int) -> Tree:
        """The very numbers of `layer.reset_parameters`, several times as fast: a round may meet many new clients."""
        random, inputs = self._generator.manual_seed(seed), layer.in_features
        bound, weight = KAIMING / math.sqrt(inputs), torch.empty(num_outputs, inputs, dtype=layer.weight.dtype)
        drawn = {self._prefix + "weight": weight.uniform_(-bound, bound, generator=random)}
        if layer.bias is not None:
            bound, bias = 1 / math.sqrt(inputs), torch.empty(num_outputs, dtype=layer.weight.dtype)
            drawn[self._prefix + "bias"] = bias.uniform_(-bound, bound, generator=random)
        drawn = {name: self._redrawn(value, random) for name, value in drawn.items()}
        return {name: value.to(layer.weight.device) for name, value in drawn.items()}

    def _redrawn(self, value: Tensor, random: torch.Generator) -> Tensor:
        """As `init` has it, in place."""
        if self._init == "uniform":
            return value.uniform_(0, 1, generator=random)
        if self._init == "orthogonal":
            return nn.init.orthogonal_(value, generator=random) if value.ndim > 1 else value.zero_()
        return value
