"""Trees: flat dicts of tensors, which hold everything that is learned.

Every tensor is of one of four kinds:

|        | travels              | stays                                                     |
|--------|----------------------|-----------------------------------------------------------|
| server | `shared` (broadcast) | `memory` (the state of the server's optimizer)            |
| client | `message` (reply)    | `personal` (head, buffers, control variate, ...)          |

A client's model is the overlay `{**shared, **personal}`: personal wins by name.

The parameters and buffers of a model keep the names that PyTorch gives them. Everything else that a method stores in a
tree has a name that begins with a dot, such as `.visited` or, for a whole tree, `under("h", tree)`. PyTorch forbids
empty parts in a name, so such a name never clashes with a parameter.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Tensor]


def is_tree(value: Any) -> bool:
    """Return whether a value is a dict of tensors by name."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(inner, Tensor) for name, inner in value.items()
    )


def pick(tree: Mapping[str, Tensor], names: Iterable[str]) -> Tree:
    """Return the part of `tree` with these names."""
    return {name: tree[name] for name in names}


def under(label: str, tree: Mapping[str, Tensor]) -> Tree:
    """Return `tree` with its names moved below `label`, where they cannot clash with the names of parameters."""
    return {f".{label}.{name}": value for name, value in tree.items()}


def within(label: str, tree: Mapping[str, Tensor]) -> Tree:
    """Return the part of `tree` that was put below `label` by `under`, with its original names."""
    prefix = f".{label}."
    return {name.removeprefix(prefix): value for name, value in tree.items() if name.startswith(prefix)}


def descend(tree: Tree, gradient: Mapping[str, Tensor], rate: float | Tensor) -> Tree:
    """Return tree - rate * gradient, for the names in `tree`."""
    if isinstance(rate, Tensor):
        return {name: value - rate * gradient[name] for name, value in tree.items()}
    return {name: torch.sub(value, gradient[name], alpha=rate) for name, value in tree.items()}  # one pass over memory


def displacement(after: Mapping[str, Tensor], before: Tree) -> Tree:
    """Return after - before, for the names in `before`."""
    return {name: after[name] - value for name, value in before.items()}


def shift(tree: Tree, by: Mapping[str, Tensor]) -> Tree:
    """Return tree + by. A tensor that `by` does not name stays as it is, and every tensor keeps its own type."""
    return {name: _as(value, value + by[name]) if name in by else value for name, value in tree.items()}


def _as(like: Tensor, value: Tensor) -> Tensor:
    return value.to(like.dtype) if like.is_floating_point() else value.round().to(like.dtype)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees of one shape into one tree, along a leading axis."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


def unstack(tree: Tree, size: int) -> list[Tree]:
    """Split a stacked tree into `size` trees: the reverse of `stack`."""
    rows: list[Tree] = [{} for _ in range(size)]
    for name, value in tree.items():
        for row, own in zip(rows, value.unbind(), strict=True):
            row[name] = own
    return rows


def as_lists(columns: Sequence[Tensor]) -> list[list[float]]:
    """Return tensors of one length as lists. All tensors of one type leave their device together."""
    found: dict[int, list[float]] = {}
    for dtype in {value.dtype for value in columns}:
        places = [place for place, value in enumerate(columns) if value.dtype == dtype]
        found |= zip(places, torch.stack([columns[place] for place in places]).tolist(), strict=True)
    return [found[place] for place in range(len(columns))]


def moved(trees: Sequence[Tree], device: torch.device) -> list[Tree]:
    """Return trees on a device. All tensors of one type that are somewhere else travel together, in one buffer."""
    away: dict[torch.dtype, list[tuple[Tree, str]]] = {}
    trees = [dict(tree) for tree in trees]
    for tree in trees:
        for name, value in tree.items():
            if value.device != device:
                away.setdefault(value.dtype, []).append((tree, name))
    for places in away.values():
        values = [tree[name] for tree, name in places]
        arrived = torch.cat([value.reshape(-1) for value in values]).to(device)
        parts = torch.split(arrived, [value.numel() for value in values])
        for (tree, name), value, part in zip(places, values, parts, strict=True):
            tree[name] = part.view(value.shape)
    return trees


def finite_rows(size: int, *trees: Mapping[str, Tensor]) -> Tensor:
    """Return which rows of the stacked trees hold finite numbers only. The answers leave the device together.

    A sum is not finite if one of its terms is not. Sums are fast, so they are tested first.
    """
    rows = [value.reshape(size, -1) for tree in trees for value in tree.values()]
    if not rows:
        return torch.ones(size, dtype=torch.bool)
    finite = _all([torch.isfinite(each.sum(1)) for each in rows])
    return finite if finite.all() else _all([torch.isfinite(each).all(1) for each in rows])


def like(pattern: Tree, values: Mapping[str, Tensor]) -> Tree:
    """Return `values` in the memory layout and on the devices of `pattern`, so that products round the same way.

    Only tensors that differ from the pattern are copied.
    """
    return {name: _laid_out(own, values[name]) for name, own in pattern.items()}


def _laid_out(own: Tensor, value: Tensor) -> Tensor:
    same = value.stride() == own.stride() and value.dtype == own.dtype and value.device == own.device
    return value if same else torch.empty_like(own).copy_(value)


def is_finite(*trees: Mapping[str, Tensor]) -> bool:
    """Return whether all numbers in the trees are finite. The answer leaves the device once, or twice if it is no.

    A sum is not finite if one of its terms is not. Sums are fast, so they are tested first.
    """
    values = [value for tree in trees for value in tree.values()]
    if not values or torch.isfinite(sum(value.sum() for value in values)):  # type: ignore[arg-type]
        return True
    return bool(_all([torch.isfinite(value).all() for value in values]))


def _all(answers: Sequence[Tensor]) -> Tensor:
    """Return, on the CPU, whether all of several answers are yes. Each device is asked once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for answer in answers:
        by_device.setdefault(answer.device, []).append(answer)
    return torch.stack([torch.stack(some).all(0).cpu() for some in by_device.values()]).all(0)


def digest(tree: Mapping[str, Tensor]) -> str:
    """Return a sha256 of the tree's names, types, shapes and values."""
    total = hashlib.sha256()
    for name, value in sorted(tree.items()):
        total.update(repr((name, value.dtype, tuple(value.shape))).encode())
        total.update(value.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()


def num_bytes(tree: Mapping[str, Tensor]) -> int:
    """Return the size of the tree's values in bytes, as they travel over a network."""
    return sum(value.numel() * value.element_size() for value in tree.values())
