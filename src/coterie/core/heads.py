"""Where the body of a model ends and its head begins, and how personal heads are drawn."""

import copy
import math
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.streams import torch_seeded

HeadInit = Literal["default", "uniform", "orthogonal"]
KAIMING = math.sqrt(3) * nn.init.calculate_gain("leaky_relu", math.sqrt(5))
"""Numerator of the bound of nn.Linear's initial weights, over the square root of its inputs: one, up to rounding."""


class Heads:
    """Heads like a given one, with any number of outputs. Their names begin with `prefix`."""

    def __init__(self, head: nn.Module, prefix: str, init: HeadInit) -> None:
        self._head, self._prefix, self._init = head, prefix, init
        self._generator = torch.Generator()

    def draw(self, num_outputs: int, seed: int) -> Tree:
        """Draw a head with this number of outputs."""
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
        """Return a head with this number of outputs. Its values have no meaning."""
        with torch_seeded(0):
            return with_outputs(self._head, num_outputs)

    def _linear(self, layer: nn.Linear, num_outputs: int, seed: int) -> Tree:
        """Draw the same numbers as `layer.reset_parameters`, several times as fast: a round may meet many clients."""
        random, inputs = self._generator.manual_seed(seed), layer.in_features
        bound, weight = KAIMING / math.sqrt(inputs), torch.empty(num_outputs, inputs, dtype=layer.weight.dtype)
        drawn = {self._prefix + "weight": weight.uniform_(-bound, bound, generator=random)}
        if layer.bias is not None:
            bound, bias = 1 / math.sqrt(inputs), torch.empty(num_outputs, dtype=layer.weight.dtype)
            drawn[self._prefix + "bias"] = bias.uniform_(-bound, bound, generator=random)
        drawn = {name: self._redrawn(value, random) for name, value in drawn.items()}
        return {name: value.to(layer.weight.device) for name, value in drawn.items()}

    def _redrawn(self, value: Tensor, random: torch.Generator) -> Tensor:
        """Draw the values in place as `init` says."""
        if self._init == "uniform":
            return value.uniform_(0, 1, generator=random)
        if self._init == "orthogonal":
            return nn.init.orthogonal_(value, generator=random) if value.ndim > 1 else value.zero_()
        return value


def find_head(model: nn.Module, head: str) -> nn.Module:
    """Return the submodule called `head`. It must not share parameters with the rest of the model."""
    if head not in (names := [name for name, _ in model.named_modules() if name]):
        available = f"available: {', '.join(names)}" if names else "it has no submodules"
        raise UserError(
            f'the model has no submodule {head!r} to use as its head; {available}; head="" makes all of it the body'
        )
    everything = list(model.named_parameters(remove_duplicate=False))
    of_head = {value: name for name, value in everything if name.startswith(f"{head}.")}
    for name, value in everything:
        if value in of_head and not name.startswith(f"{head}."):
            raise UserError(
                f"{of_head[value]} of the head is tied to {name} of the body, but a head is drawn, sized and trained "
                'separately: give it a parameter of its own, or make the whole model the body with head=""'
            )
    return model.get_submodule(head)


def with_outputs(module: nn.Module, num_outputs: int) -> nn.Module:
    """Return a copy whose last linear layer has `num_outputs` outputs. A layer of another size is drawn again."""
    module = copy.deepcopy(module)
    name = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    last = module.get_submodule(name)
    assert isinstance(last, nn.Linear)
    if last.out_features == num_outputs:
        return module
    fresh = nn.Linear(last.in_features, num_outputs, last.bias is not None, last.weight.device, last.weight.dtype)
    if not name:
        return fresh
    module.set_submodule(name, fresh)
    return module


def cut(model: nn.Module, head: str) -> tuple[nn.Module, nn.Module]:
    """Return copies of the body and of the head."""
    if not head:
        return copy.deepcopy(model), nn.Identity()
    body = copy.deepcopy(model)
    body.set_submodule(head, nn.Identity())
    return body, copy.deepcopy(find_head(model, head))


def last_linear(module: nn.Module, head: str) -> str | None:
    """Return the name of the linear layer of a head that gives the outputs; None if there is no head."""
    linear = [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]
    if next(module.buffers(), None) is not None:
        raise UserError(f"the head {head!r} has buffers (a BatchNorm?); buffers belong in the body")
    if head and not linear:
        raise UserError(f"the head {head!r} has no nn.Linear layer, so it cannot be sized to a client's classes")
    return linear[-1] if linear else None
