"""Gradient descent on linear heads with fixed features, for one client or for many at once, in closed form.

The gradient over a linear head is the gradient over its outputs times the features. A step adds this product to the
head in place. With two classes only the difference of the two outputs moves, which halves both products of a step.
(Training clients in chunks whose features fit into a cache of the processor was not faster.)

Shapes: C clients, A answers, M features, K outputs. Features are stored as (C, M, A), because both products then run
about twice as fast as with (C, A, M).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack

from coterie.core.counting import counts_declared_work
from coterie.core.data import Data
from coterie.core.objective import Objective
from coterie.core.task import Task
from coterie.core.tree import Tree


class Given(NamedTuple):
    """What clients start from. With many clients, all tensors have a leading axis C."""

    weight: Tensor  # (K, M)
    bias: Tensor | None  # (K,)
    features: Tensor  # (A, M)
    y: Tensor  # (A,)
    counted: Tensor  # (A,) bool
    rate: Tensor  # ()


class Plan(NamedTuple):
    """What is the same for all clients."""

    objective: Objective
    steps: int
    momentum: float
    mu: float


def takes_dense_path(task: Task) -> bool:
    """Return whether `dense_head_descent` can train the head: one linear layer, outside of `grad`, and uncounted."""
    levels = [level.key() for level in get_interpreter_stack() or ()]
    return task.head_is_linear and not counts_declared_work() and levels in ([], [TransformType.Vmap])


@torch.no_grad()
def dense_head_descent(
    task: Task,
    head: Tree,
    features: Tensor,
    data: Data,
    steps: int,
    rate: float | Tensor,
    momentum: float,
    mu: float = 0.0,
) -> Tree:
    """Train the head by gradient descent. Arguments and results are those of `head_descent`."""
    weight, *bias = head
    given = Given(
        weight=head[weight],
        bias=head[bias[0]] if bias else None,
        features=features.flatten(0, -2),
        y=data.y.flatten(),
        counted=task.objective.counted(data.y, data.mask).flatten(),
        rate=rate if isinstance(rate, Tensor) else features.new_full((), rate),
    )
    plan = Plan(task.objective, steps, momentum, mu)
    if get_interpreter_stack():
        trained = _Vmapped.apply(plan, given)  # type: ignore[no-untyped-call]
    else:
        trained = tuple(value[0] for value in _descend(plan, _mapped(given, lambda value: value[None])))
    return dict(zip(head, trained, strict=True))


class _Vmapped(torch.autograd.Function):
    """The head steps of all clients of a vmap at once."""

    @staticmethod
    def forward(plan: Plan, given: Given) -> tuple[Tensor, ...]:  # noqa: ARG004
        """Refuse to run without a vmap."""
        raise AssertionError("it is called under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: head steps are not differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: Plan, given: Given) -> Any:
        """Return the trained heads, and the axes of the clients in them."""

        def stacked(value: Tensor, axis: int | None) -> Tensor:
            """Return a tensor with the axis of the clients in front."""
            return value.expand(info.batch_size, *value.shape) if axis is None else value.movedim(axis, 0)

        trained = _descend(plan, _mapped(given, stacked, in_dims[1]))
        return trained, (0,) * len(trained)


def _mapped(given: Given, function: Callable[..., Tensor], *others: Any) -> Given:
    """Apply a function to each tensor, and to what has its place in `others`."""
    every: Any = (None if parts[0] is None else function(*parts) for parts in zip(given, *others, strict=True))
    return Given(*every)


def _descend(plan: Plan, given: Given) -> tuple[Tensor, ...]:
    """Train the heads of C clients. Returns (weights, biases), or the weights alone."""
    phi = given.features.mT.contiguous()
    share = (given.counted / given.counted.sum(1, keepdim=True, dtype=phi.dtype))[:, None]
    start = [given.weight] if given.bias is None else [given.weight, given.bias[..., None]]  # (C, K, M), (C, K, 1)
    rate = given.rate[:, None, None]
    if given.weight.shape[1] == 2 and not plan.mu and (slope := plan.objective.pair_slope(given.y[:, None], share)):
        # Two outputs move by opposite steps: their mean stays, and their difference moves by twice the step. (The mean
        # would also move with a penalty.)
        mean = [value.mean(1, keepdim=True) for value in start]
        moved = _steps(plan, [value[:, :1] - value[:, 1:] for value in start], phi, slope, 2 * rate)
        ends = [torch.cat([m + d / 2, m - d / 2], 1) for m, d in zip(mean, moved, strict=True)]
    else:
        slope = plan.objective.slope(given.y[:, None], share, given.weight.shape[1])
        ends = _steps(plan, [value.clone() for value in start], phi, slope, rate)
    return ends[0], *(bias[..., 0] for bias in ends[1:])


def _steps(
    plan: Plan, head: list[Tensor], phi: Tensor, slope: Callable[[Tensor], Tensor], rate: Tensor
) -> list[Tensor]:
    """Take the steps in place, on weights (C, K, M) and, if there are any, biases (C, K, 1)."""
    W, *b = head
    V, *v = (torch.zeros_like(value) if plan.momentum else value for value in head)
    for _ in range(plan.steps):
        G = slope(torch.baddbmm(b[0], W, phi) if b else torch.bmm(W, phi))  # (C, K, A)
        if plan.momentum:
            V.baddbmm_(G, phi.mT, beta=plan.momentum)
            for speed in v:
                speed.mul_(plan.momentum).add_(G.sum(2, keepdim=True))
            for value, speed in zip(head, (V, *v), strict=True):
                value.sub_((speed.add_(value, alpha=plan.mu) if plan.mu else speed) * rate)
        else:
            for value in head if plan.mu else ():
                value.mul_(1 - rate * plan.mu)
            W.baddbmm_(G.mul_(rate), phi.mT, alpha=-1)
            for bias in b:
                bias.sub_(G.sum(2, keepdim=True))
    return head
