"""Linear heads on fixed features, for one client or for many at once: their loss and gradient descent in closed form.

The gradient over a linear head is the gradient over its outputs times the features. A step adds this product to the
head in place. With two classes only the difference of the two outputs moves, which halves both products of a step.
(Training clients in chunks whose features fit into a cache of the processor was not faster.)

Shapes: C clients, A answers, M features, K outputs. Features are stored as (C, M, A), because both products then run
about twice as fast as with (C, A, M).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType

from coterie.core.counting import counts_declared_work
from coterie.core.data import Data
from coterie.core.objective import Objective
from coterie.core.steps.stacked import for_all, transforms
from coterie.core.task import Task
from coterie.core.tree import Tree


class Given(NamedTuple):
    """What clients start from. With many clients, all tensors have a leading axis C."""

    weight: Tensor  # (K, M)
    bias: Tensor | None  # (K,)
    features: Tensor  # (A, M)
    y: Tensor  # (A,)
    counted: Tensor  # (A,) bool
    rate: Tensor | None = None  # ()

    def share(self) -> Tensor:
        """Return the weight (C, 1, A) of each answer in the mean."""
        return (self.counted / self.counted.sum(1, keepdim=True, dtype=self.features.dtype))[:, None]

    def losses(self, outputs: Tensor, objective: Objective) -> Tensor:
        """Return the mean loss (C,) of outputs (C, K, A)."""
        each = objective.losses(outputs.mT.flatten(0, 1), self.y.flatten()).view(self.y.shape)
        return torch.where(self.counted, each, 0).sum(1) / self.counted.sum(1)

    def outputs(self) -> Tensor:
        """Return the outputs (C, K, A)."""
        phi = self.features.mT
        return (
            torch.bmm(self.weight, phi) if self.bias is None else torch.baddbmm(self.bias[..., None], self.weight, phi)
        )


@dataclass(frozen=True)
class Plan:
    """What is the same for all clients. It is no tuple, so that vmap does not look for tensors in it."""

    objective: Objective
    steps: int
    momentum: float
    mu: float


def takes_dense_path(task: Task) -> bool:
    """Return whether the functions below can be used: for one linear layer, outside of `grad`, and uncounted."""
    return task.head_is_linear and not counts_declared_work() and transforms() in ([], [TransformType.Vmap])


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
    given = _given(task, head, features, data)
    given = given._replace(rate=rate if isinstance(rate, Tensor) else features.new_full((), rate))
    trained = for_all(partial(_descend, Plan(task.objective, steps, momentum, mu)), given)
    return dict(zip(head, trained, strict=True))


@torch.no_grad()
def dense_head_loss(task: Task, head: Tree, features: Tensor, data: Data) -> Tensor:
    """Return the mean loss of the head. Arguments and results are those of `Task.head_loss`."""

    def loss(given: Given) -> Tensor:
        """Return the loss (C,) of each client."""
        return given.losses(given.outputs(), task.objective)

    return for_all(loss, _given(task, head, features, data))


@torch.no_grad()
def dense_head_gradient(
    task: Task, head: Tree, features: Tensor, data: Data, over_head: bool
) -> tuple[Tree, Tensor, Tensor]:
    """Differentiate the loss. Arguments and results are those of `head_gradient`."""
    found = for_all(partial(_differentiate, task.objective, over_head), _given(task, head, features, data))
    g_features, loss, *g_head = found
    return dict(zip(head, g_head, strict=True)) if over_head else {}, g_features.view(features.shape), loss


def _given(task: Task, head: Tree, features: Tensor, data: Data) -> Given:
    weight, *bias = head.values()
    counted = task.objective.counted(data.y, data.mask)
    return Given(weight, bias[0] if bias else None, features.flatten(0, -2), data.y.flatten(), counted.flatten())


def _differentiate(objective: Objective, over_head: bool, given: Given) -> tuple[Tensor, ...]:
    """Return the gradient over the features, the loss, and the gradients over the weights and biases, if wanted."""
    outputs = given.outputs()
    loss = given.losses(outputs, objective)
    G = objective.slope(given.y[:, None], given.share(), outputs.shape[1])(outputs)  # (C, K, A)
    g_features = torch.bmm(G.mT, given.weight)
    if not over_head:
        return g_features, loss
    return g_features, loss, torch.bmm(G, given.features), *([] if given.bias is None else [G.sum(2)])


def _descend(plan: Plan, given: Given) -> tuple[Tensor, ...]:
    """Train the heads of C clients. Returns (weights, biases), or the weights alone."""
    phi = given.features.mT.contiguous()
    share = given.share()
    start = [given.weight] if given.bias is None else [given.weight, given.bias[..., None]]  # (C, K, M), (C, K, 1)
    assert given.rate is not None
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
