"""The verbs of Scaffnew and its heirs: a coin that calls for aggregation, control variates, mixtures.

What a client keeps for them in its personal Tree, next to local buffers:

    h.NAME          the control variate h_i, for each parameter of the model
    optimum.NAME    x_i*, where f_i is least
    client.alpha    α_i, the share of the shared model in its own
    client.gamma    γ_i, its step size
    NAME            the model as its steps leave it, from there to the next broadcast only
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.counting import CountFlops
from coterie.core.data import Data, Graph
from coterie.core.round import Client, Round
from coterie.core.steps.convex import Search, minimum
from coterie.core.task import Task
from coterie.core.tree import Tree, digest, num_bytes, pick
from coterie.errors import UserError
from coterie.streams import generator

Mixing = Annotated[float, Field(ge=0, le=1)]


def steps_to_coin(p: float, rnd: Round) -> int:
    """How often a coin is thrown until it shows what it shows with probability p: 1, 2, ... So many local steps lead to
    an aggregation, if each is followed by one with probability p."""
    return int(generator(rnd.seed, "steps", rnd.index).geometric(p))


def zero(task: Task) -> Tree:
    """h_i = 0."""
    return _labelled("h", {name: torch.zeros_like(task.initial[name]) for name in task.body + task.head})


def variate(task: Task, personal: Tree) -> Tree:
    """h_i."""
    return _unlabelled("h", task, personal)


def moved(task: Task, personal: Tree, now: Tree, pace: float | Tensor) -> Tree:
    """h_i ← h_i + pace · (now - where the client's steps led), of which it then keeps no more than that."""
    h = {name: value + pace * (now[name] - personal[name]) for name, value in variate(task, personal).items()}
    return {**at_rest(task, personal), **_labelled("h", h)}


def at_rest(task: Task, personal: Tree) -> Tree:
    """Without what a client holds of the model from its steps to the next broadcast only."""
    return {name: value for name, value in personal.items() if name in task.local_buffers or name not in task.initial}


def mixture(task: Task, shared: Tree, personal: Tree) -> Tree:
    """The model α_i x + (1 - α_i) x_i*; but what the client has of the model itself wins, as ever."""
    alpha, best = personal["client.alpha"], _unlabelled("optimum", task, personal)
    mixed = {name: alpha * shared[name] + (1 - alpha) * value for name, value in best.items()}
    return {**shared, **mixed, **pick(personal, [name for name in task.initial if name in personal])}


def mixing(task: Task, alpha: float | Mapping[str, float], client: Client) -> Tree:
    """α_i, given for all or by name."""
    if not isinstance(alpha, float):
        if client.id not in alpha:
            raise UserError(f"method.alpha has nothing for client {client.id!r}: name all clients, or give one number")
        alpha = alpha[client.id]
    return {"client.alpha": task.initial[(task.body + task.head)[0]].new_tensor(alpha)}


def with_optimum(task: Task, personal: Tree, data: Data, mu: float, how: Search) -> Tree:
    """The personal Tree with x_i*, and with the local buffers that the search for it leaves. With α_i = 1 nothing is
    made of x_i*, and nothing searched."""
    if float(personal["client.alpha"]) == 1:
        how = how._replace(epochs=0)
    search = partial(minimum, task, {**task.initial, **pick(personal, task.local_buffers)}, data, mu, how)
    memory = Optima.innermost
    best = search()[0] if memory is None else memory.recall(_key(task, personal, data, mu, how), lambda: search()[0])
    return {**personal, **pick(best, task.local_buffers), **optimum(task, best)}


def optimum(task: Task, best: Tree) -> Tree:
    """x_i*, as a client keeps it."""
    return _labelled("optimum", pick(best, task.body + task.head))


class Optima:
    """Inside, a local optimum that was sought before is remembered, with what the search cost: runs that differ in
    nothing that it depends on share it. For models that their printed form tells apart, as that of all our own does."""

    innermost: ClassVar["Optima | None"] = None
    """The one that remembers now."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Tree, int]] = {}
        self._bytes = 0

    def __enter__(self) -> Self:
        self._around, Optima.innermost = Optima.innermost, self
        return self

    def __exit__(self, *error: object) -> None:
        Optima.innermost = self._around

    def recall(self, key: str, search: Callable[[], Tree]) -> Tree:
        counter = CountFlops.innermost
        if key in self._found:
            best, flops = self._found[key]
            if counter is not None:
                counter.total += flops
            return best
        before = counter.total if counter else 0
        best = search()
        if self._bytes < ROOM:
            self._found[key] = best, counter.total - before if counter else 0
            self._bytes += num_bytes(best)
        return best


ROOM = 1e9
"""Bytes of local optima that are remembered, at most."""


def _key(task: Task, personal: Tree, data: Data, mu: float, how: Search) -> str:
    """Of all that a search depends on."""
    x = data.x._asdict() if isinstance(data.x, Graph) else {"x": data.x}
    examples = {**x, "y": data.y, "mask": data.mask, "stream": data.stream}
    trees = (task.initial, pick(personal, task.local_buffers), examples)
    drawn = torch.initial_seed() if task.is_random else 0
    return repr((str(task.module(task.initial)), task.objective, mu, how, drawn, *map(digest, trees)))


def _labelled(label: str, tree: Tree) -> Tree:
    return {f"{label}.{name}": value for name, value in tree.items()}


def _unlabelled(label: str, task: Task, personal: Tree) -> Tree:
    return {name: personal[f"{label}.{name}"] for name in task.body + task.head}
