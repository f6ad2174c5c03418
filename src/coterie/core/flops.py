"""What a task costs: counted, not derived."""

from typing import TYPE_CHECKING, NamedTuple

import torch

from coterie.core.counting import CountFlops
from coterie.core.tree import Tree, pick

if TYPE_CHECKING:
    from coterie.core.data import Data
    from coterie.core.task import Task


class Flops(NamedTuple):
    """Floating-point operations for one example: matrix products and convolutions, as PyTorch counts them."""

    body_forward: float
    body_backward: float  # down to the body's parameters, through the head
    head_step: float  # forward and backward of the head alone, on given features
    frozen_head: float  # the same without the gradient over its parameters
    head_forward: float
    feature_product: float  # of the features with one vector; 0 unless the head is linear


def count_flops(task: "Task", params: Tree, data: "Data") -> Flops:
    """With this model, on these examples."""
    with CountFlops() as forward:
        features, pullback, _ = task.body_vjp(params, data.x)
    head = pick(params, task.head)
    with CountFlops() as head_step:
        torch.func.grad(task.head_loss)(head, features, data)
    with CountFlops() as frozen:
        torch.func.grad(task.head_loss, argnums=1)(head, features, data)
    with CountFlops() as head_forward:
        task.head_loss(head, features, data)
    with CountFlops() as backward:
        _, gradient = torch.func.grad(task.head_loss, argnums=(0, 1))(head, features, data)
        through = backward.total - head_step.total
        pullback(gradient)
    both = head_step.total
    width = features.shape[-1] + len(task.head) - 1  # a bias is one more feature
    product = features[0, ..., 0].numel() * 2 * width if task.head_is_linear else 0
    down = backward.total - both if task.body else 0
    N = len(data.y)
    counts = forward.total, down, both, frozen.total - through, head_forward.total, N * product
    return Flops(*(total / N for total in counts))


def count_hessian_product(task: "Task", params: Tree, data: "Data") -> float:
    """The same for one product of the Hessian with a vector."""
    over = task.body + task.head
    with CountFlops() as counted:
        task.hessian_product(params, data, over, pick(params, over))
    return float(counted.total / len(data.y))
