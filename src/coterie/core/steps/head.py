"""Work on the head alone, where the body does not move."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad

from coterie.core.data import Data
from coterie.core.round import Round
from coterie.core.steps.local import rolling, travelling
from coterie.core.steps.server import adam, adam_memory
from coterie.core.task import Task
from coterie.core.tree import Tree, descend, pick
from coterie.errors import UserError

POWER = 50
"""Steps of power iteration."""
GAUGED = 50
"""Rounds from one comparison of rates with their bounds to the next."""
SMOOTHNESS_PRODUCTS = 2 * POWER + 1
"""Of the features with a vector, in `head_smoothness`."""


def head_descent(
    task: Task,
    head: Tree,
    features: Tensor,
    data: Data,
    steps: int,
    rate: float | Tensor,
    momentum: float = 0.0,
    *,
    adaptive: bool = False,
) -> Tree:
    """Gradient descent on the head alone, on features that do not change; momentum as in `local_sgd`, or Adam."""
    slope = _head_gradient(task, features, data, head)
    velocity, memory = dict[str, Tensor](), adam_memory(head) if adaptive else {}
    for _ in range(steps):
        g = slope(head)
        if adaptive:
            head, memory = adam(head, memory, g, rate)
        else:
            velocity = {name: rolling(velocity.get(name), value, momentum) for name, value in g.items()}
            head = descend(head, velocity, rate)
    return head


def _head_gradient(task: Task, features: Tensor, data: Data, like: Tree) -> Callable[[Tree], Tree]:
    """The gradient of the head's loss as a function of the head. Of one linear layer it is known: that over the
    outputs, times the features.

    Features lie as (M, N): so, both products run about twice as fast as the other way round.
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


def head_smoothness(task: Task, head: Tree, features: Tensor, data: Data) -> Tensor:
    """L: no gradient of the loss over a linear head changes faster, by the largest eigenvalue of ΦᵀΦ/N.

    Power iteration from the mean of |Φ|, which is close already where features are not negative.
    """
    if not task.head_is_linear:
        raise UserError("the smoothness of the loss is known for heads of one linear layer only; give a number")
    weight, *bias = head
    phi, share = _answers(task, features, data)
    if bias:
        phi = torch.cat([phi, torch.ones_like(phi[:1])])
    tiny = torch.finfo(phi.dtype).tiny
    largest = phi.abs().amax().clamp(min=tiny)
    phi = phi / largest  # whose squares neither overflow nor vanish
    v = phi.abs() @ share[:, None]
    for _ in range(POWER):
        v = v / v.norm().clamp(min=tiny)
        v = phi @ (share[:, None] * (phi.T @ v))
    L: Tensor = task.objective.curvature(len(head[weight])) * largest**2 * v.norm()
    return L.clamp(min=tiny)  # a head of one output has a loss that never changes


def gauged(rnd: Round) -> bool:
    """Whether the rates are compared with their bounds in this round."""
    return rnd.index % GAUGED == 1


def gauge(task: Task, head: Tree, features: Tensor, data: Data, rnd: Round, **rates: float | Tensor) -> Tree:
    """What a client adds to its message for that: the L of its loss over its head, and for each rate of a step on the
    head 1 if it is not below 2/L."""
    if not (gauged(rnd) and task.head_is_linear):
        return {}
    L = head_smoothness(task, head, features, data)
    return {"smoothness": L, **{f"{name}_steep": (rate * L >= 2).to(L.dtype) for name, rate in rates.items()}}


def rate_remarks(update: Tree, **rates: tuple[float | str, str, float]) -> list[str]:
    """On head steps that were undone, and on rates that are not below their bound: of each its value, its bound in
    words, and how many times 2/L that is."""
    mean = {name: float(value / update["weight"]) for name, value in update.items() if not value.ndim}
    said = []
    if (undone := mean["undone"]) > 0:
        said.append(f"the head steps of {_clients(undone)} raised the loss and were undone; lower beta")
    for name, (rate, bound, times) in rates.items():
        if share := mean.get(f"{name}_steep", 0.0):
            said.append(
                f"{name} = {rate} is not below {bound}, the bound of convergence theory, for {_clients(share)}; "
                f"in the mean it is {times * 2 / mean['smoothness']:.3g}"
            )
    return said


def _clients(share: float) -> str:
    return f"clients with {share:.0%} of the cohort's examples"


def _answers(task: Task, features: Tensor, data: Data) -> tuple[Tensor, Tensor]:
    """Features as (M, A), and what each answer counts for in the mean."""
    phi = features.flatten(0, -2).T.contiguous()
    counted = task.objective.counted(data.y, data.mask).flatten()
    return phi, counted / counted.sum(dtype=phi.dtype)


def around_features(
    task: Task, shared: Tree, personal: Tree, data: Data, work: Callable[[Tensor], tuple[Tensor, Tree, Tree]]
) -> tuple[Tree, Tree]:
    """A client's update with a fixed body: one pass through it forward, `work` on the features as in
    `Method.on_features`, one pass backward: (message, personal). The gradient over the body is in the message."""
    features, pull_back, buffers = task.body_vjp({**shared, **personal}, data.x)
    g_features, message, head = work(features)
    (g,) = pull_back(g_features)
    return {**g, **travelling(task, shared, buffers), **message}, pick({**personal, **buffers, **head}, personal)
