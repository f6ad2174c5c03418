"""The server's side of a round: the weights of clients, and steps along the aggregate."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from coterie.core.round import Round, Update
from coterie.core.task import Task
from coterie.core.tree import Tree, descend, pick, shift, under, within


def shares(users: Literal["equal", "sizes"], sizes: Tensor) -> Tensor:
    """Return the weights of a mean over the cohort: all equal, or by number of examples."""
    return sizes / sizes.sum() if users == "sizes" else torch.ones_like(sizes) / len(sizes)


def unbiased_shares(users: Literal["equal", "sizes"], sizes: Tensor, rnd: Round) -> Tensor:
    """Return the weights p_i / Pr(i) of a sum over the cohort whose mean over all cohorts is Σ p_i over all clients."""
    p = sizes / rnd.num_examples if users == "sizes" else torch.full_like(sizes, 1 / rnd.num_clients)
    return rnd.importance * p


def server_sum(task: Task, shared: Tree, update: Update) -> Tree:
    """Replace the parameters by the weighted sum of the clients' models. Buffers move by their mean.

    Clients send how far they moved, so the sum is Σ w_i times the model they started from, plus Σ w_i times that. It
    differs from the mean if the weights do not sum to one.
    """
    excess = update.weight - 1
    names = [name for name in task.params if name in shared]
    return server_move(
        task, shared, update, 1.0, {name: update.tensors[name] + excess * shared[name] for name in names}
    )


def server_step(task: Task, shared: Tree, memory: Tree, update: Update, rate: float) -> tuple[Tree, Tree]:
    """Step along the aggregated gradient, by Adam if the server has memory of it. Buffers move by their mean."""
    buffers = {name: shared[name] for name in task.buffers if name in shared}
    params = {name: value for name, value in shared.items() if name not in buffers}
    mean = {name: update.tensors[name] / update.weight for name in buffers}  # the weights need not sum to one
    if memory:
        params, memory = adam(params, memory, update.tensors, rate)
    else:
        params = descend(params, update.tensors, rate)
    return {**shift(buffers, mean), **params}, memory


def server_move(
    task: Task, shared: Tree, update: Update, rate: float, move: Mapping[str, Tensor] | None = None
) -> Tree:
    """Move the parameters by `rate` times the clients' mean displacement, or by `move`. Buffers move by their mean."""
    move = update.tensors if move is None else move
    ahead = {name: -move[name] for name in task.params if name in shared}
    moved = update._replace(tensors={**update.tensors, **ahead})
    return server_step(task, shared, {}, moved, rate)[0]


def adaptive_memory(task: Task, shared: Tree, epsilon: float) -> Tree:
    """Return the initial memory of an adaptive server: first moments m = 0, second moments v = ε²."""
    params = pick(shared, task.params)
    m = {name: torch.zeros_like(value) for name, value in params.items()}
    v = {name: torch.full_like(value, epsilon**2) for name, value in params.items()}
    return {**under("m", m), **under("v", v)}


def adam_memory(params: Mapping[str, Tensor]) -> Tree:
    """Return Adam's initial memory: first and second moments of zero, and its step count."""
    zeros = {name: torch.zeros_like(value) for name, value in params.items()}
    again = {name: torch.zeros_like(value) for name, value in params.items()}
    return {**under("m", zeros), **under("v", again), ".t": torch.zeros((), dtype=torch.int64)}


def adam(params: Tree, memory: Tree, gradient: Mapping[str, Tensor], rate: float | Tensor) -> tuple[Tree, Tree]:
    """Take one step of Adam (Kingma and Ba, 2015) with its usual constants. Returns (params, memory)."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8
    t, first, second = memory[".t"] + 1, within("m", memory), within("v", memory)
    after, m, v = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
    for name, value in params.items():
        m[name] = beta1 * first[name] + (1 - beta1) * gradient[name]
        v[name] = beta2 * second[name] + (1 - beta2) * gradient[name] ** 2
        unbiased = (v[name] / (1 - beta2 ** int(t))).sqrt()
        after[name] = value - rate * (m[name] / (1 - beta1 ** int(t))) / (unbiased + epsilon)
    return after, {**under("m", m), **under("v", v), ".t": t}
