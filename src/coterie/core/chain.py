"""Models that are a chain of dense layers: `nn.Linear`, and functions of each value, one after the other.

The gradient of such a model is known in closed form, so that local steps need neither autograd nor a copy of the
gradient (`core/steps/dense.py`). What counts is the type of the layers: a class derived from one of them, a hook, a
`forward` that was set on a layer or a frozen parameter makes the model one that autograd has to differentiate.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, leaky_relu, silu


class Dense(NamedTuple):
    """A linear layer, by the names of its parameters."""

    weight: str
    bias: str | None


class Pointwise(NamedTuple):
    """A function of each value."""

    forward: Callable[[Tensor], Tensor]
    """Map z to h. It may overwrite z if `backward` does not need it."""
    backward: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Map the gradient over h, z and h to the gradient over z."""


Chain = tuple[Dense | Pointwise, ...]


def _relu_back(g: Tensor, _: Tensor, h: Tensor) -> Tensor:
    back: Tensor = torch.ops.aten.threshold_backward(g, h, 0)
    return back


def _tanh_back(g: Tensor, _: Tensor, h: Tensor) -> Tensor:
    back: Tensor = torch.ops.aten.tanh_backward(g, h)
    return back


def _sigmoid_back(g: Tensor, _: Tensor, h: Tensor) -> Tensor:
    back: Tensor = torch.ops.aten.sigmoid_backward(g, h)
    return back


def _silu_back(g: Tensor, z: Tensor, _: Tensor) -> Tensor:
    back: Tensor = torch.ops.aten.silu_backward(g, z)
    return back


def _gelu_back(g: Tensor, z: Tensor, _: Tensor, approximate: str) -> Tensor:
    back: Tensor = torch.ops.aten.gelu_backward(g, z, approximate=approximate)
    return back


def _leaky_back(g: Tensor, z: Tensor, _: Tensor, negative_slope: float) -> Tensor:
    back: Tensor = torch.ops.aten.leaky_relu_backward(g, z, negative_slope, False)
    return back


def _pointwise(part: nn.Module) -> Pointwise | None:
    """Return the function that a layer applies to each value; None if it is another kind of layer."""
    if type(part) is nn.GELU:
        return Pointwise(partial(gelu, approximate=part.approximate), partial(_gelu_back, approximate=part.approximate))
    if type(part) is nn.LeakyReLU:
        return Pointwise(
            partial(leaky_relu, negative_slope=part.negative_slope),
            partial(_leaky_back, negative_slope=part.negative_slope),
        )
    return POINTWISE.get(type(part))


POINTWISE = {
    nn.ReLU: Pointwise(torch.relu_, _relu_back),
    nn.Tanh: Pointwise(torch.tanh_, _tanh_back),
    nn.Sigmoid: Pointwise(torch.sigmoid_, _sigmoid_back),
    nn.SiLU: Pointwise(silu, _silu_back),
}


def find_chain(body: nn.Module, head: nn.Module, prefix: str, trained: set[str], width: int) -> Chain | None:
    """Return the layers of a model that is a chain, or None.

    Args:
        body: the model with the identity as its head.
        head: the head.
        prefix: what the names of the head's parameters begin with.
        trained: names of all parameters that are trained.
        width: number of dimensions of a batch of inputs.
    """
    parts = [*_parts(body, ""), *_parts(head, prefix)]
    start = next((place for place, (_, part) in enumerate(parts) if not _flattens(part)), len(parts))
    chain = _layers(parts[start:])
    named = {name for layer in chain or () if isinstance(layer, Dense) for name in layer if name}
    return chain if chain and named == trained and (start or width == 2) else None


def find_tail(body: nn.Module, head: nn.Module, prefix: str, trained: set[str]) -> tuple[Chain, nn.Module] | None:
    """Return the longest chain that a model ends in, and a copy of the body without it; None if there is no chain.

    Everything before the chain is called the front. It ends in features (N, D).
    """
    parts = [each for each in _parts(body, "") if each[0]]
    for start in range(len(parts) + 1):
        chain = _layers([*parts[start:], *_parts(head, prefix)])
        if chain and {name for layer in chain if isinstance(layer, Dense) for name in layer if name} <= trained:
            front = copy.deepcopy(body)
            for name, _ in parts[start:]:
                front.set_submodule(name, nn.Identity())
            return chain, front
    return None


def _layers(parts: Sequence[tuple[str, nn.Module]]) -> Chain | None:
    """Return the parts as a chain that begins with a linear layer, or None."""
    layers: list[Dense | Pointwise] = []
    for name, part in parts:
        if is_altered(part):
            return None
        if type(part) is nn.Linear:
            layers.append(Dense(_join(name, "weight"), None if part.bias is None else _join(name, "bias")))
        elif (function := _pointwise(part)) and layers:
            layers.append(function)
        else:
            return None
    return tuple(layers) or None


def _flattens(part: nn.Module) -> bool:
    return type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1) and not is_altered(part)


def _parts(module: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """Return the layers of nested `nn.Sequential`s in order, with their names. Anything else is one layer."""
    if is_altered(module):
        return [(name, module)]
    if type(module) is nn.Sequential:  # with a layer that is used twice
        return [each for own, part in module._modules.items() if part for each in _parts(part, _join(name, own))]
    return [] if type(module) is nn.Identity else [(name, module)]


def _join(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def is_altered(module: nn.Module) -> bool:
    """Return whether a module has hooks or a forward pass of its own, so that it may not do what its class does."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return "forward" in vars(module) or any(hooks)
