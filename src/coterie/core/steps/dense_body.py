"""A pass of many clients through a body that stays fixed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.core.chain import Chain, Dense
from coterie.core.counting import counts_declared_work
from coterie.core.task import Pullback, Task
from coterie.core.tree import Tree, pick


def body_pass(task: Task, params: Tree, parts: Sequence[Tensor]) -> tuple[Tensor, Pullback, Tree]:
    """Pass the examples of several clients through the body as one batch. Returns what `Task.body_vjp` returns.

    If the model is a chain of dense layers, the parts are read where they are, without a common copy, and there is no
    tape: a layer is one product forward, and one or two backward.
    """
    chain = _body_of(task)
    if not chain or counts_declared_work():
        return task.body_vjp(params, torch.cat(list(parts)) if len(parts) > 1 else parts[0])
    first, *others = chain
    assert isinstance(first, Dense)
    parts = [part.flatten(1) for part in parts]
    sizes = [len(part) for part in parts]
    h = parts[0].new_empty(sum(sizes), len(params[first.weight]))
    for part, own in zip(parts, torch.split(h, sizes), strict=True):
        _linear(params, first, part, out=own)
    ways = []
    for layer in others:
        z, h = h, _linear(params, layer, h) if isinstance(layer, Dense) else layer.forward(h)
        ways.append((z, h))

    def pull_back(g: Tensor) -> tuple[Tree]:
        """Return the gradient over the body's parameters, from the gradient over the features."""
        gradient: Tree = {}
        for layer, (z, h) in zip(others[::-1], ways[::-1], strict=True):
            if isinstance(layer, Dense):
                gradient |= {layer.weight: g.T @ z} | ({layer.bias: g.sum(0)} if layer.bias else {})
                g = g @ params[layer.weight]
            else:
                g = layer.backward(g, z, h)
        weight = torch.zeros_like(params[first.weight])
        for part, own in zip(parts, torch.split(g, sizes), strict=True):
            weight.addmm_(own.T, part)
        gradient |= {first.weight: weight} | ({first.bias: g.sum(0)} if first.bias else {})
        return (pick(gradient, task.body),)

    return h, pull_back, {}


def _body_of(task: Task) -> Chain:
    """Return the layers of the body, if the model is a chain of dense layers."""
    above = [
        place for place, layer in enumerate(task.chain or ()) if isinstance(layer, Dense) and layer[0] in task.head
    ]
    return (task.chain or ())[: above[0] if above else None]


def _linear(params: Tree, layer: Dense, x: Tensor, out: Tensor | None = None) -> Tensor:
    W = params[layer.weight].T
    return torch.mm(x, W, out=out) if layer.bias is None else torch.addmm(params[layer.bias], x, W, out=out)
