"""Functions of many clients at once, called from a function of one client.

Local steps in closed form work on tensors of C clients, with the clients along a leading axis. A method's function sees
one client. `for_all` connects the two: under vmap it hands over the tensors of all clients, so that vmap does not look
into the steps; otherwise it hands over those of the one client as C = 1.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

T = TypeVar("T")


def transforms() -> list[TransformType]:
    """Return the torch.func transforms that are active, from the outermost to the innermost."""
    return [level.key() for level in get_interpreter_stack() or ()]


def for_all(function: Callable[[Any], T], given: Any) -> T:
    """Call a function of stacked tensors. It must not be differentiated.

    Args:
        function: takes `given` with a leading axis of clients on each tensor, and returns tensors, or tuples or dicts
            of them, that have this axis, too.
        given: tensors, or tuples or dicts of them, of one client. Parts that are None are passed on.
    """
    leaves, spec = tree_flatten(given)
    results: list[TreeSpec] = []

    def flat(*stacked: Tensor | None) -> tuple[Tensor, ...]:
        """Call the function with flat arguments and results, as PyTorch wants them."""
        outputs, shape = tree_flatten(function(tree_unflatten(stacked, spec)))
        results.append(shape)
        return tuple(outputs)

    if transforms():
        outputs = _UnderVmap.apply(flat, *leaves)  # type: ignore[no-untyped-call]
    else:
        outputs = [value[0] for value in flat(*(None if leaf is None else leaf[None] for leaf in leaves))]
    found: T = tree_unflatten(outputs, results[0])
    return found


class _UnderVmap(torch.autograd.Function):
    """A function of the tensors of all clients of a vmap."""

    @staticmethod
    def forward(function: Callable[..., tuple[Tensor, ...]], *leaves: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG004
        """Refuse to run without a vmap."""
        raise AssertionError("it is called under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: the function is not differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Callable[..., tuple[Tensor, ...]], *leaves: Tensor | None) -> Any:
        """Return the results, and the axes of the clients in them."""
        pairs = zip(leaves, in_dims[1:], strict=True)
        outputs = function(*(_stacked(leaf, axis, info.batch_size) for leaf, axis in pairs))
        return outputs, (0,) * len(outputs)


def _stacked(leaf: Tensor | None, axis: int | None, clients: int) -> Tensor | None:
    """Return a tensor with the axis of the clients in front."""
    if leaf is None:
        return None
    return leaf.expand(clients, *leaf.shape) if axis is None else leaf.movedim(axis, 0)
