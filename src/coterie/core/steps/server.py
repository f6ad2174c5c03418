"""The server's side: what clients count, and what is done with their sum."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from coterie.core.task import Task
from coterie.core.tree import Tree, descend, shift

Users = Literal["equal", "sizes"]


def shares(users: Users, sizes: Tensor) -> Tensor:
    """Weights of a mean over the cohort: clients alike, or by their examples."""
    return sizes / sizes.sum() if users == "sizes" else torch.ones_like(sizes) / len(sizes)


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


def moments(task: Task, shared: Tree, epsilon: float) -> Tree:
    """What an adaptive server remembers of displacements and of their squares, at first: m = 0 and v = ε²."""
    first = {f"m.{name}": torch.zeros_like(shared[name]) for name in task.body + task.head}
    return {**first, **{f"v.{name}": torch.full_like(shared[name], epsilon**2) for name in task.body + task.head}}


def adaptive_move(task: Task, shared: Tree, memory: Tree, update: Tree, rate: float, epsilon: float) -> Tree:
    """w + rate · m / (√v + ε); buffers move by their mean."""
    step = {name: memory[f"m.{name}"] / (memory[f"v.{name}"].sqrt() + epsilon) for name in task.body + task.head}
    return server_move(task, shared, {**update, **step}, rate)


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
