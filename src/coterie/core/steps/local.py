"""Gradients of a client, and local steps along them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from coterie.core.data import Data
from coterie.core.round import Reply
from coterie.core.steps.batches import turns
from coterie.core.steps.dense import dense_sgd, takes_dense_path
from coterie.core.task import Task
from coterie.core.tree import Tree, descend, displacement, pick

Loss = Callable[[Tree, Data], tuple[Tensor, Tree]]
"""A loss as a function of (params, examples). Returns (loss, buffers), as `Task.loss` does."""


class Pull(NamedTuple):
    """The proximal term (mu/2) ||w - centre||² of a local objective. Without a centre it pulls towards the origin."""

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
    clip: float = 0.0,
    objective: Loss | None = None,
) -> tuple[Tree, Tensor]:
    """Take local gradient steps. Returns (params, loss at the last gradient).

    Args:
        task: the model and its loss.
        params: the client's model, which may hold further entries.
        data: the client's examples.
        steps: number of steps, or Epochs.
        rate: learning rate, or a function of the step 0, 1, ...
        batch: examples per step; 0 means all.
        over: names of the parameters to train; all parameters by default.
        momentum: heavy-ball momentum, which starts from rest.
        pull: proximal term.
        control: tree that is subtracted from every gradient.
        clip: maximum norm of the gradient, with that of the proximal term and before `control`; 0 does not clip.
        objective: the loss to descend on, instead of the task's. Entries that it returns replace those of the model.
    """
    over = task.params if over is None else over
    if not clip and objective is None and takes_dense_path(task, data, steps):
        mu, centre = (0.0, None) if pull is None else pull
        return dense_sgd(task, params, data, steps, rate, batch, over, momentum, mu, centre, control)
    after, velocity, loss = task.laid_out(params), dict[str, Tensor](), torch.zeros(())
    for turn in turns(steps, data, batch):
        g, value, buffers = local_gradient(task, after, turn.batch, over, pull, objective)
        g = clipped(g, clip)
        if control is not None:
            g = displacement(g, control)
        velocity = {name: rolling(velocity.get(name), each, momentum) for name, each in g.items()}
        stepped = descend(pick(after, over), velocity, rate(turn.step) if callable(rate) else rate)
        after = turn.kept({**after, **stepped, **buffers}, after)
        loss = turn.kept_value(value, loss)
    return after, loss


def sgd_reply(
    task: Task,
    shared: Tree,
    personal: Tree,
    data: Data,
    steps: int,
    rate: float | Tensor | Callable[[int], float | Tensor],
    batch: int = 0,
    *,
    pull: Pull | None = None,
    clip: float = 0.0,
) -> Reply:
    """Run local SGD from the client's model, and reply with the displacement of everything that is shared."""
    after, loss = local_sgd(task, {**shared, **personal}, data, steps, rate, batch, pull=pull, clip=clip)
    return Reply(displacement(after, shared), {"loss": loss}, pick(after, personal))


def fine_tuned(
    task: Task,
    params: Tree,
    data: Data,
    steps: int,
    rate: float | Tensor,
    batch: int = 0,
    *,
    over: Sequence[str] | None = None,
    pull: Pull | None = None,
    clip: float = 0.0,
) -> Tree:
    """Return the model after local steps on the named parameters, by default on all of them."""
    return local_sgd(task, params, data, steps, rate, batch, over=over, pull=pull, clip=clip)[0]


def local_gradient(
    task: Task,
    params: Tree,
    data: Data,
    over: Sequence[str],
    pull: Pull | None = None,
    objective: Loss | None = None,
) -> tuple[Tree, Tensor, Tree]:
    """Differentiate the client's loss over the named parameters. Returns (gradient, loss, buffers).

    `pull` adds its gradient, but does not add its value to the loss.
    """
    loss_of = objective or task.loss
    g, loss, buffers = gradient(lambda trained: loss_of({**params, **trained}, data), pick(params, over))
    if pull is not None:
        away = params if pull.centre is None else displacement(params, pick(pull.centre, over))
        g = {name: value + pull.mu * away[name] for name, value in g.items()}
    return g, loss, buffers


def clipped(g: Tree, limit: float) -> Tree:
    """Scale a gradient down to the norm `limit` if its norm is larger. Zero does not clip."""
    if not limit or not g:
        return g
    norm = torch.stack([torch.linalg.vector_norm(value) for value in g.values()]).norm()
    scale = (limit / norm).clamp(max=1)
    return {name: scale * value for name, value in g.items()}


def weighted_loss(task: Task, params: Tree, data: Data, share: Tensor, trained: Tree) -> tuple[Tensor, Tree]:
    """Return `task.loss` with each example multiplied by its share."""
    losses, buffers = task.losses({**params, **trained}, data)
    return (share * losses).sum() / task.objective.counted(data.y, data.mask).sum(), buffers


def rolling(velocity: Tensor | None, g: Tensor, momentum: float) -> Tensor:
    """Return the velocity of an undamped heavy ball: momentum * velocity + g."""
    return g if velocity is None or not momentum else momentum * velocity + g


def gradient(objective: Callable[[Tree], tuple[Tensor, Tree]], at: Tree) -> tuple[Tree, Tensor, Tree]:
    """Differentiate `objective(tree) -> (loss, aux)`. Returns (gradient, loss, aux).

    Outside of torch.func transforms, plain autograd gives the same in a sixth less time. It refuses an empty tree.
    """
    if not at or torch._C._functorch.peek_interpreter_stack() is not None:
        g, (loss, aux) = grad_and_value(objective, has_aux=True)(at)
        return g, loss, aux
    leaves = {name: value.detach().requires_grad_() for name, value in at.items()}
    with torch.enable_grad():
        loss, aux = objective(leaves)
    g = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, g, strict=True)), loss.detach(), {name: value.detach() for name, value in aux.items()}


def travelling(task: Task, shared: Tree, buffers: Tree) -> Tree:
    """Return how far the shared buffers have moved. Buffers that belong to the client are left out."""
    return displacement(buffers, pick(shared, [name for name in task.buffers if name in shared]))
