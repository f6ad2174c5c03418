"""The verbs that methods share: local steps of a client, steps of a server."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import grad, grad_and_value
from torch.nn.functional import embedding

from coterie.errors import UserError
from coterie.graph import Graph
from coterie.objective import Objective
from coterie.round import Round
from coterie.streams import bits
from coterie.task import Data, Task
from coterie.tree import Tree, descend, displacement, pick, shift

Users = Literal["equal", "sizes"]


def shares(users: Users, sizes: Tensor) -> Tensor:
    """Weights of a mean over the cohort: clients alike, or by their examples."""
    return sizes / sizes.sum() if users == "sizes" else torch.ones_like(sizes) / len(sizes)


def epoch_steps(data: Data, size: int) -> Tensor:
    """How many batches of that size there are in one pass over the examples."""
    n = data.mask.sum()
    return (n + size - 1) // size if size else torch.ones_like(n)


def minibatch(data: Data, size: int, step: int) -> Data:
    """The batch of local step 0, 1, ...: each epoch a fresh shuffle, its last batch as short as it comes out.

    A short batch is filled up with the epoch's first examples, masked: BatchNorm sees them, the loss does not. Size 0,
    or one that the examples do not fill, is all of them. Tensors only, so that it runs under vmap, where N counts
    padding and n does not.
    """
    N = data.mask.shape[0]
    if size == 0 or size >= N:
        return data
    if isinstance(data.x, Graph):
        raise UserError("a graph cannot be cut into minibatches: set the method's batch_size to 0")
    n, length = data.mask.sum(), epoch_steps(data, size)
    rank = bits(data.stream, torch.div(step, length, rounding_mode="floor"), torch.arange(N, device=n.device))
    order = torch.where(data.mask, rank, torch.iinfo(torch.int64).max).argsort()
    place = (step % length) * size + torch.arange(size, device=n.device)
    chosen = order[place % n]
    x = embedding(chosen, data.x.flatten(1)).reshape(size, *data.x.shape[1:])  # data.x[chosen], but quick under vmap
    return data._replace(x=x, y=data.y[chosen], mask=place < n)


POWER = 50
"""Steps of power iteration."""
GAUGED = 50
"""Rounds from one comparison of rates with their bounds to the next."""
SMOOTHNESS_PRODUCTS = 2 * POWER + 1
"""Of the features with a vector, in `head_smoothness`."""


class Pull(NamedTuple):
    """The proximal term (mu/2) ||w - centre||² of a local objective; without a centre, towards the origin."""

    mu: float
    centre: Tree | None = None


def local_sgd(
    task: Task,
    params: Tree,
    data: Data,
    rates: Sequence[float | Tensor],
    over: Sequence[str],
    batch: int = 0,
    *,
    momentum: float = 0.0,
    pull: Pull | None = None,
    control: Tree | None = None,
) -> tuple[Tree, Tensor]:
    """One gradient step for each rate on the parameters named in `over`: (params, loss at the last gradient).

    The momentum is the heavy ball's, and starts from rest. `control` is subtracted from every gradient.
    """
    loss, velocity = torch.zeros(()), dict[str, Tensor]()
    for step, rate in enumerate(rates):
        g, loss, buffers = local_gradient(task, params, minibatch(data, batch, step), over, pull)
        if control is not None:
            g = displacement(g, control)
        velocity = {name: _rolling(velocity.get(name), value, momentum) for name, value in g.items()}
        params = {**params, **descend(pick(params, over), velocity, rate), **buffers}
    return params, loss


def local_gradient(
    task: Task, params: Tree, data: Data, over: Sequence[str], pull: Pull | None = None
) -> tuple[Tree, Tensor, Tree]:
    """(gradient over the parameters named, loss, buffers). `pull` adds its gradient, but not its value to the loss."""
    g, loss, buffers = gradient(lambda trained: task.loss({**params, **trained}, data), pick(params, over))
    if pull is not None:
        away = params if pull.centre is None else displacement(params, pick(pull.centre, over))
        g = {name: value + pull.mu * away[name] for name, value in g.items()}
    return g, loss, buffers


class _Each(NamedTuple):
    """In the place of an objective: each example's loss, in the place of their mean."""

    of: Objective

    def mean_loss(self, outputs: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        each = self.of.losses(outputs.flatten(0, -2), y.flatten()).reshape(y.shape)
        return torch.where(self.of.counted(y, mask), each, 0).reshape(len(y), -1).sum(1)


def example_losses(task: Task, params: Tree, data: Data) -> tuple[Tensor, Tree]:
    """The training loss of each example, the sum over its positions, and the buffers as the pass leaves them. (N,)"""
    judge = copy(task)
    judge.objective = cast(Objective, _Each(task.objective))
    return judge.loss(params, data)


def weighted_loss(task: Task, params: Tree, data: Data, share: Tensor, trained: Tree) -> tuple[Tensor, Tree]:
    """The same as one number: `task.loss` with each example multiplied by its share."""
    losses, buffers = example_losses(task, {**params, **trained}, data)
    return (share * losses).sum() / task.objective.counted(data.y, data.mask).sum(), buffers


def _rolling(velocity: Tensor | None, g: Tensor, momentum: float) -> Tensor:
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
            velocity = {name: _rolling(velocity.get(name), value, momentum) for name, value in g.items()}
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
    v = (phi.abs() @ share[:, None]) + torch.finfo(phi.dtype).tiny
    for _ in range(POWER):
        v = v / v.norm()
        v = phi @ (share[:, None] * (phi.T @ v))
    L: Tensor = task.objective.curvature(len(head[weight])) * v.norm()
    return L.clamp(min=torch.finfo(phi.dtype).tiny)  # a head of one output has a loss that never changes


def gauged(rnd: Round) -> bool:
    """Whether the rates are compared with their bounds in this round."""
    return rnd.index % GAUGED == 1


def gauge(task: Task, head: Tree, features: Tensor, data: Data, rnd: Round) -> Tree:
    """What a client adds to its message for that."""
    if not (gauged(rnd) and task.head_is_linear):
        return {}
    return {"smoothness": head_smoothness(task, head, features, data)}


def rate_remarks(update: Tree, rnd: Round, beta: float, rho: float) -> list[str]:
    """On head steps that were undone, and on rates above the bounds beta < 2/L and rho < (2/L)(r/I); a rate of 0 is not
    compared. L is the cohort's mean over heads, and that of everything together is no smaller."""
    said, share = [], rnd.cohort_size / rnd.num_clients
    if (undone := float(update["undone"] / update["weight"])) > 0:
        said.append(f"the head steps of {undone:.0%} of the cohort raised the loss and were undone; lower beta")
    if "smoothness" in update:
        L = float(update["smoothness"] / update["weight"])
        for name, rate, bound, formula in (("beta", beta, 2 / L, "2/L"), ("rho", rho, 2 / L * share, "(2/L)(r/I)")):
            if rate >= bound:
                said.append(f"{name} = {rate:g} is not below {formula} = {bound:.3g}, the bound of convergence theory")
    return said


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


def travelling(task: Task, shared: Tree, buffers: Tree) -> Tree:
    """How far those buffers have moved that are not the client's own."""
    return displacement(buffers, pick(shared, [name for name in task.buffers if name in shared]))


def server_step(task: Task, shared: Tree, memory: Tree, update: Tree, rate: float) -> tuple[Tree, Tree]:
    """A step on the gradient in `update`, by Adam where the server has memory of it; buffers move by their mean."""
    buffers = {name: shared[name] for name in task.buffers if name in shared}
    params = {name: value for name, value in shared.items() if name not in buffers}
    mean = {name: update[name] / update["weight"] for name in buffers}  # the weights need not sum to one
    if memory:
        params, memory = adam(params, memory, update, rate)
    else:
        params = descend(params, update, rate)
    return {**shift(buffers, mean), **params}, memory


def server_move(task: Task, shared: Tree, update: Tree, rate: float) -> Tree:
    """`rate` times as far as the clients moved on average; buffers just as far."""
    ahead = {name: -update[name] for name in (*task.body, *task.head) if name in shared}
    return server_step(task, shared, {}, {**update, **ahead}, rate)[0]


def adam_memory(params: Mapping[str, Tensor]) -> Tree:
    """Adam's first and second moments, and its step count."""
    moments = {f"{moment}.{name}": torch.zeros_like(value) for moment in "mv" for name, value in params.items()}
    return {**moments, "t": torch.zeros((), dtype=torch.int64)}


def adam(params: Tree, memory: Tree, gradient: Mapping[str, Tensor], rate: float | Tensor) -> tuple[Tree, Tree]:
    """One step of Adam (Kingma and Ba, 2015) with its usual constants: (params, memory)."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8
    t = memory["t"] + 1
    after, kept = {}, {"t": t}
    for name, value in params.items():
        m = beta1 * memory[f"m.{name}"] + (1 - beta1) * gradient[name]
        v = beta2 * memory[f"v.{name}"] + (1 - beta2) * gradient[name] ** 2
        after[name] = value - rate * (m / (1 - beta1 ** int(t))) / ((v / (1 - beta2 ** int(t))).sqrt() + epsilon)
        kept |= {f"m.{name}": m, f"v.{name}": v}
    return after, kept
