"""A client's gradients, and local steps along them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from coterie.core.data import Data
from coterie.core.method import Passes
from coterie.core.steps.batches import turns
from coterie.core.task import Task
from coterie.core.tree import Tree, descend, displacement, pick
from coterie.settings import Epochs


class Pull(NamedTuple):
    """The proximal term (mu/2) ||w - centre||² of a local objective; without a centre, towards the origin."""

    mu: float
    centre: Tree | None = None


def local_sgd(
    task: Task,
    params: Tree,
    data: Data,
    steps: int,
    rate: float | Tensor | Callable[[int], float | Tensor],
    batch: int = 0,
    *,
    over: Sequence[str] | None = None,
    momentum: float = 0.0,
    pull: Pull | None = None,
    control: Tree | None = None,
) -> tuple[Tree, Tensor]:
    """Gradient steps on all parameters, or on those named in `over`: (params, loss at the last gradient).

    The rate is one for all steps, or a function of step 0, 1, ... The momentum is the heavy ball's, and starts from
    rest. `control` is subtracted from every gradient.
    """
    over = task.body + task.head if over is None else over
    after, velocity = {**params, "loss": torch.zeros(())}, dict[str, Tensor]()
    for turn in turns(steps, data, batch):
        g, loss, buffers = local_gradient(task, after, turn.batch, over, pull)
        if control is not None:
            g = displacement(g, control)
        velocity = {name: rolling(velocity.get(name), value, momentum) for name, value in g.items()}
        stepped = descend(pick(after, over), velocity, rate(turn.step) if callable(rate) else rate)
        after = turn.kept({**after, **stepped, **buffers, "loss": loss}, after)
    loss = after.pop("loss")
    return after, loss


def fine_tuned(
    task: Task,
    params: Tree,
    data: Data,
    steps: int,
    rate: float | Tensor,
    batch: int = 0,
    *,
    pull: Pull | None = None,
) -> Tree:
    """The model adapted to the client by local steps on all of it."""
    return local_sgd(task, params, data, steps, rate, batch, pull=pull)[0]


def sgd_passes(size: int, steps: int, batch: int = 0, *, each: int = 1) -> Passes:
    """What local steps on everything cost a client with so many examples, if each takes so many gradients."""
    batch = min(batch, size) or size
    gradients = each * steps * (-(-size // batch) if isinstance(steps, Epochs) else 1)
    return Passes(batch, body_forwards=gradients, body_backwards=gradients, head_steps=gradients)


def local_gradient(
    task: Task, params: Tree, data: Data, over: Sequence[str], pull: Pull | None = None
) -> tuple[Tree, Tensor, Tree]:
    """(gradient over the parameters named, loss, buffers). `pull` adds its gradient, but not its value to the loss."""
    g, loss, buffers = gradient(lambda trained: task.loss({**params, **trained}, data), pick(params, over))
    if pull is not None:
        away = params if pull.centre is None else displacement(params, pick(pull.centre, over))
        g = {name: value + pull.mu * away[name] for name, value in g.items()}
    return g, loss, buffers


def weighted_loss(task: Task, params: Tree, data: Data, share: Tensor, trained: Tree) -> tuple[Tensor, Tree]:
    """`task.loss` with each example multiplied by its share."""
    losses, buffers = task.losses({**params, **trained}, data)
    return (share * losses).sum() / task.objective.counted(data.y, data.mask).sum(), buffers


def rolling(velocity: Tensor | None, g: Tensor, momentum: float) -> Tensor:
    """The heavy ball's velocity, undamped: momentum * velocity + g."""
    return g if velocity is None or not momentum else momentum * velocity + g


def gradient(objective: Callable[[Tree], tuple[Tensor, Tree]], at: Tree) -> tuple[Tree, Tensor, Tree]:
    """Of objective(tree) = (loss, whatever else comes out): (gradient, loss, whatever else).

    Where no torch.func transform is at work, plain autograd gives the same in a sixth less time; over nothing at all
    it refuses to.
    """
    if not at or torch._C._functorch.peek_interpreter_stack() is not None:
        g, (loss, rest) = grad_and_value(objective, has_aux=True)(at)
        return g, loss, rest
    leaves = {name: value.detach().requires_grad_() for name, value in at.items()}
    with torch.enable_grad():
        loss, rest = objective(leaves)
    g = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, g, strict=True)), loss.detach(), {name: value.detach() for name, value in rest.items()}


def travelling(task: Task, shared: Tree, buffers: Tree) -> Tree:
    """How far those buffers have moved that are not the client's own."""
    return displacement(buffers, pick(shared, [name for name in task.buffers if name in shared]))
