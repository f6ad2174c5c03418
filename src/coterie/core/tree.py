"""Everything that is learned is a flat dict of tensors, and every tensor is of one of four kinds.

|        | travels              | stays                                          |
|--------|----------------------|------------------------------------------------|
| server | `shared` (broadcast) | `memory` (of the server's optimizer)           |
| client | `message` (reply)    | `personal` (head, buffers, control variate...) |

A client's model is the overlay `{**shared, **personal}`: personal wins by name.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def pick(tree: Mapping[str, Tensor], names: Iterable[str]) -> Tree:
    """The part of `tree` that has these names."""
    return {name: tree[name] for name in names}


def descend(tree: Tree, gradient: Mapping[str, Tensor], rate: float | Tensor) -> Tree:
    """tree - rate * gradient, for the names in `tree`."""
    if isinstance(rate, Tensor):
        return {name: value - rate * gradient[name] for name, value in tree.items()}
    return {name: torch.sub(value, gradient[name], alpha=rate) for name, value in tree.items()}  # in one sweep


def displacement(after: Mapping[str, Tensor], before: Tree) -> Tree:
    """How far each tensor of `before` has moved."""
    return {name: after[name] - value for name, value in before.items()}


def shift(tree: Tree, by: Mapping[str, Tensor]) -> Tree:
    """tree + by, in the tree's own types: a BatchNorm's integer counter stays an integer."""
    return {name: _as(value, value + by[name]) for name, value in tree.items()}


def _as(like: Tensor, value: Tensor) -> Tensor:
    return value.to(like.dtype) if like.is_floating_point() else value.round().to(like.dtype)


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one shape as one tree, along a leading axis."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def unstack(tree: Tree, size: int) -> list[Tree]:
    """The reverse of `stack`, for so many trees."""
    rows: list[Tree] = [{} for _ in range(size)]
    for name, value in tree.items():
        for row, own in zip(rows, value.unbind(), strict=True):
            row[name] = own
    return rows


def finite_rows(tree: Mapping[str, Tensor], size: int) -> Tensor:
    """Which of the stacked trees hold finite numbers only. (A sum is not finite if a term is not, and quick.)"""
    finite = torch.ones(size, dtype=torch.bool)
    for value in tree.values():
        finite &= torch.isfinite(value.reshape(size, -1).sum(1)).cpu()
    return finite


def like(pattern: Tree, values: Mapping[str, Tensor]) -> Tree:
    """The values, laid out in memory as those of the pattern, on its devices: products then round in the same way."""
    return {name: torch.empty_like(own).copy_(values[name]) for name, own in pattern.items()}


def is_finite(tree: Mapping[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in tree.values())


def digest(tree: Mapping[str, Tensor]) -> str:
    """Tells trees apart: a sha256 of names, types, shapes and values."""
    total = hashlib.sha256()
    for name, value in sorted(tree.items()):
        total.update(repr((name, value.dtype, tuple(value.shape))).encode())
        total.update(value.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def num_bytes(tree: Mapping[str, Tensor]) -> int:
    """What the tree weighs on the wire."""
    return sum(value.numel() * value.element_size() for value in tree.values())
