"""Work on the head alone, while the body stays fixed."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, grad_and_value

from coterie.core.data import Data
from coterie.core.round import Reply, Round, Update
from coterie.core.steps.batches import turns
from coterie.core.steps.dense_head import (
    dense_head_descent,
    dense_head_gradient,
    dense_head_loss,
    takes_dense_path,
)
from coterie.core.steps.local import clipped, rolling, travelling
from coterie.core.steps.server import adam, adam_memory
from coterie.core.task import Task
from coterie.core.tree import Tree, descend, pick
from coterie.errors import UserError

POWER = 50
"""Number of steps of power iteration."""
GAUGED = 50
"""Rounds between two comparisons of the rates with their bounds."""
SMOOTHNESS_PRODUCTS = 2 * POWER + 1
"""Products of the features with a vector in `head_smoothness`."""


def head_descent(
    task: Task,
    head: Tree,
    features: Tensor,
    data: Data,
    steps: int,
    rate: float | Tensor,
    momentum: float = 0.0,
    *,
    batch: int = 0,
    clip: float = 0.0,
    adaptive: bool = False,
    mu: float = 0.0,
) -> Tree:
    """Train the head by gradient descent on fixed features, or by Adam on all examples in every step.

    Momentum, minibatches and clipping are as in `local_sgd`. The objective is the client's loss plus (mu/2) ||head||².
    """
    if not head or not steps:  # it may be frozen
        return head
    if batch or clip:
        return _head_sgd(task, head, data._replace(x=features), steps, rate, momentum, batch, clip, mu)
    if not adaptive and takes_dense_path(task):
        return dense_head_descent(task, head, features, data, steps, rate, momentum, mu)
    slope = _head_gradient(task, features, data, head)
    velocity, memory = dict[str, Tensor](), adam_memory(head) if adaptive else {}
    for _ in range(steps):
        g = penalized(slope(head), head, mu)
        if adaptive:
            head, memory = adam(head, memory, g, rate)
        else:
            velocity = {name: rolling(velocity.get(name), value, momentum) for name, value in g.items()}
            head = descend(head, velocity, rate)
    return head


def penalized(g: Tree, head: Tree, mu: float) -> Tree:
    """Add the gradient of (mu/2) ||head||² to a gradient over the head."""
    return {name: value + mu * head[name] for name, value in g.items()} if mu else g


def penalized_loss(task: Task, head: Tree, features: Tensor, data: Data, mu: float) -> Tensor:
    """Return the client's loss plus (mu/2) ||head||²."""
    loss = head_loss(task, head, features, data)
    return loss + mu / 2 * torch.stack([(value**2).sum() for value in head.values()]).sum() if mu else loss


def _head_sgd(
    task: Task,
    head: Tree,
    data: Data,
    steps: int,
    rate: float | Tensor,
    momentum: float,
    batch: int,
    clip: float,
    mu: float,
) -> Tree:
    """Train the head on minibatches of examples whose inputs are features."""
    velocity = dict[str, Tensor]()
    for turn in turns(steps, data, batch):
        g = clipped(penalized(grad(task.head_loss)(head, turn.batch.x, turn.batch), head, mu), clip)
        velocity = {name: rolling(velocity.get(name), value, momentum) for name, value in g.items()}
        head = turn.kept(descend(head, velocity, rate), head)
    return head


def _head_gradient(task: Task, features: Tensor, data: Data, like: Tree) -> Callable[[Tree], Tree]:
    """Return the gradient of the head's loss as a function of the head.

    For one linear layer it is known: the gradient over the outputs, times the features. Features are stored as (M, N),
    because both products then run about twice as fast as with (N, M).
    """
    if not task.head_is_linear:
        return lambda head: grad(task.head_loss)(head, features, data)
    weight, *bias = like
    phi, share = _answers(task, features, data)
    slope = task.objective.slope(data.y.flatten(), share, len(like[weight]))

    def known(head: Tree) -> Tree:
        outputs = head[weight] @ phi
        G = slope(outputs + head[bias[0]][:, None] if bias else outputs)  # (K, N)
        return {weight: G @ phi.T, **{name: G.sum(1) for name in bias}}

    return known


def head_loss(task: Task, head: Tree, features: Tensor, data: Data) -> Tensor:
    """Return the mean loss of the head on fixed features."""
    loss = dense_head_loss if head and takes_dense_path(task) else Task.head_loss
    return loss(task, head, features, data)


def head_gradient(
    task: Task, head: Tree, features: Tensor, data: Data, *, over_head: bool = True
) -> tuple[Tree, Tensor, Tensor]:
    """Differentiate the loss of the head on fixed features.

    Returns (gradient over the head, gradient over the features, loss). The first is empty unless `over_head`.
    """
    if head and takes_dense_path(task):
        return dense_head_gradient(task, head, features, data, over_head)
    if not over_head:
        g_features, loss = grad_and_value(task.head_loss, argnums=1)(head, features, data)
        return {}, g_features, loss
    (g_head, g_features), loss = grad_and_value(task.head_loss, argnums=(0, 1))(head, features, data)
    return g_head, g_features, loss


def head_smoothness(task: Task, head: Tree, features: Tensor, data: Data, mu: float = 0.0) -> Tensor:
    """Return L, the smoothness of the loss plus (mu/2) ||head||² over a linear head.

    The loss adds the largest eigenvalue of ΦᵀΦ/N, times the curvature of one answer. Power iteration starts from the
    mean of |Φ|, which is close already if the features are not negative.
    """
    if not task.head_is_linear:
        raise UserError(
            'method.beta = "auto" needs a head that is a single linear layer, for which the smoothness of the loss is '
            "known; set method.beta to a number"
        )
    weight, *bias = head
    phi, share = _answers(task, features, data)
    if bias:
        phi = torch.cat([phi, torch.ones_like(phi[:1])])
    tiny = torch.finfo(phi.dtype).tiny
    largest = phi.abs().amax().clamp(min=tiny)
    phi = phi / largest  # so that squares neither overflow nor vanish
    v = phi.abs() @ share[:, None]
    for _ in range(POWER):
        v = v / v.norm().clamp(min=tiny)
        v = phi @ (share[:, None] * (phi.T @ v))
    L: Tensor = task.objective.curvature(len(head[weight])) * largest**2 * v.norm()
    return L.clamp(min=tiny) + mu  # the loss of a head with one output never changes


def gauged(rnd: Round) -> bool:
    """Return whether the rates are compared with their bounds in this round."""
    return rnd.index % GAUGED == 1


def gauge(
    task: Task, head: Tree, features: Tensor, data: Data, rnd: Round, mu: float = 0.0, **rates: float | Tensor
) -> Tree:
    """Return the numbers by which the server compares rates with their bounds, in rounds where it does.

    They are the smoothness L of `head_smoothness` and, for each rate, 1 if it is not below 2/L.
    """
    if not (gauged(rnd) and task.head_is_linear):
        return {}
    L = head_smoothness(task, head, features, data, mu)
    return {"smoothness": L, **{f"{name}_steep": (rate * L >= 2).to(L.dtype) for name, rate in rates.items()}}


def rate_notes(update: Update, **rates: tuple[float | str, str, float]) -> dict[str, float | str]:
    """Return warnings if head steps were undone. Bounds that rates exceed without harm are only recorded, as numbers.

    Args:
        update: the aggregate of the cohort.
        rates: for each rate its value, its bound in words, and the bound as a multiple of 2/L.
    """
    notes: dict[str, float | str] = {}
    if (undone := float(update.mean("undone"))) > 0:
        notes["undone"] = (
            f"the head steps of {_clients(undone)} raised the loss, so they were undone and these clients kept the "
            'heads they had; lower method.beta, or set it to "auto"'
        )
    for name, (rate, bound, times) in rates.items():
        steep = f"{name}_steep"
        share = float(update.mean(steep)) if steep in update.numbers else 0.0
        if share:
            mean = times * 2 / float(update.mean("smoothness"))
            if undone:
                notes[name] = (
                    f"method.{name} = {rate} is too large for {_clients(share)}: steps are only sure to lower the loss "
                    f"if it is below {bound}, which is {mean:.3g} on average; try a value below that"
                )
            else:
                notes[f"{name}_bound"] = mean
    return notes


def _clients(share: float) -> str:
    return "all clients of the round" if share > 0.9999 else f"clients with {share:.0%} of the round's examples"


def _answers(task: Task, features: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """Return the features as (M, A), and the weight of each of the A answers in the mean."""
    phi = features.flatten(0, -2).T.contiguous()
    counted = task.objective.counted(data.y, data.mask).flatten()
    return phi, counted / counted.sum(dtype=phi.dtype)


def around_features(
    task: Task, shared: Tree, personal: Tree, data: Data, work: Callable[[Tensor], tuple[Tensor, Tree, Tree]]
) -> Reply:
    """Pass through a fixed body forward, do `work` on the features as in `FixedBody.on_features`, and pass backward."""
    features, pull_back, buffers = task.body_vjp({**shared, **personal}, data.x)
    g_features, numbers, head = work(features)
    (g,) = pull_back(g_features)
    tensors = {**g, **travelling(task, shared, buffers)}
    return Reply(tensors, numbers, pick({**personal, **buffers, **head}, personal))
