"""The backward pass from a given gradient over outputs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.core.tree import Tree


def pulled_back(outputs: Tensor, leaves: Mapping[str, Tensor], g: Tensor) -> Tree:
    """Return the gradient over the leaves, from the gradient over outputs that autograd recorded. It is 0 if unrelated.

    `torch.autograd.grad` with a given gradient would do the same. It loads SymPy first, which takes half a second.
    """
    if not (outputs.requires_grad and leaves):
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    with torch.enable_grad():
        end = _From.apply(outputs, g)  # type: ignore[no-untyped-call]
    return dict(zip(leaves, torch.autograd.grad(end, [*leaves.values()], materialize_grads=True), strict=True))


class _From(torch.autograd.Function):
    """A number whose gradient over the outputs is a given tensor."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, g: Tensor) -> Tensor:
        """Remember the gradient."""
        ctx.g = g
        return outputs.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        """Return the gradient."""
        return ctx.g, None
