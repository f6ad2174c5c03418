"""Functions for Scaffnew and its successors: aggregation by a coin, control variates, mixtures with local optima.

Their clients keep, next to local buffers:

    under("h", ...)         the control variate h_i, for each parameter of the model
    under("optimum", ...)   x_i*, the minimizer of f_i
    .alpha                  α_i, the share of the shared model in the client's model
    .gamma                  γ_i, the client's step size
    .smoothness             the largest smoothness of f_i seen so far, if the client adapts its step size
    the model itself        as the local steps leave it, until the next broadcast arrives
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.counting import CountFlops
from coterie.core.data import Data, Graph
from coterie.core.round import Client, Round, Update
from coterie.core.steps.convex import Bound, Search, best_p, minimum, step_size
from coterie.core.steps.smoothness import secant
from coterie.core.task import Task
from coterie.core.tree import Tree, digest, num_bytes, pick, shift, under, within
from coterie.errors import UserError
from coterie.streams import generator

Mixing = Annotated[float, Field(ge=0, le=1)]
MixingWeights = Annotated[
    Mixing | dict[str, Mixing],
    Field(
        description="Share of the shared model in the client's model: one number for all clients, or one by client "
        'name. The name "new" stands for clients that are not named.'
    ),
]


def steps_to_coin(p: float, rnd: Round, purpose: str = "steps") -> int:
    """Draw the number of coin tosses until heads, which comes with probability p: 1, 2, ...

    If each local step is followed by an aggregation with probability p, this is the number of steps until one. Server
    and clients draw the same number, because it depends on the announced round only.
    """
    return int(generator(rnd.seed, purpose, rnd.index).geometric(p))


def zero(task: Task) -> Tree:
    """Return the initial control variate, h_i = 0."""
    return under("h", {name: torch.zeros_like(task.initial[name]) for name in task.params})


def variate(task: Task, personal: Tree) -> Tree:
    """Return the control variate h_i."""
    return pick(within("h", personal), task.params)


def moved(task: Task, personal: Tree, now: Tree, pace: float | Tensor) -> Tree:
    """Return the personal state with h_i ← h_i + pace · (now - the client's model), and without that model."""
    h = {name: value + pace * (now[name] - personal[name]) for name, value in variate(task, personal).items()}
    return {**at_rest(task, personal), **under("h", h)}


def at_rest(task: Task, personal: Tree) -> Tree:
    """Return the personal state without the model that a client keeps only until the next broadcast."""
    return {name: value for name, value in personal.items() if name in task.local_buffers or name not in task.initial}


def mixture(task: Task, shared: Tree, personal: Tree) -> Tree:
    """Return the model α_i x + (1 - α_i) x_i*. A model in the personal state wins, as in every overlay."""
    alpha, best = personal[".alpha"], pick(within("optimum", personal), task.params)
    mixed = {name: alpha * shared[name] + (1 - alpha) * value for name, value in best.items()}
    return {**shared, **mixed, **pick(personal, [name for name in task.initial if name in personal])}


def weighted_move(task: Task, shared: Tree, update: Update, weight: Tensor) -> Tree:
    """Move the parameters by the aggregate divided by `weight`. Buffers move by their mean."""
    totals = {name: update.weight if name in task.buffers else weight for name in shared}
    return shift(shared, {name: update.tensors[name] / total for name, total in totals.items()})


def mixing(task: Task, alpha: float | Mapping[str, float], client: Client) -> Tree:
    """Return α_i as an entry of the personal state."""
    return {".alpha": task.initial[task.params[0]].new_tensor(share(alpha, client.id))}


def share(alpha: float | Mapping[str, float], client: str) -> float:
    """Return α_i, given as one number for all clients or by client name."""
    return own_value("alpha", alpha, client) if isinstance(alpha, Mapping) else alpha


def steps_by_name(task: Task, gamma: float | str | Mapping[str, float], client: Client) -> Tree:
    """Return γ_i as an entry of the personal state, if it is given by client name. Otherwise `prepare` adds it."""
    if not isinstance(gamma, Mapping):
        return {}
    return {".gamma": task.initial[task.params[0]].new_tensor(own_value("gamma", gamma, client.id))}


def with_step(
    task: Task, personal: Tree, data: Data, mu: float, gamma: float | Bound | Mapping[str, float], at: Tree
) -> Tree:
    """Return the personal state with γ_i for steps from the model `at`, unless γ_i has been there since the start."""
    if isinstance(gamma, Mapping):
        return personal
    return {**personal, ".gamma": task.initial[task.params[0]].new_tensor(step_size(gamma, task, data, mu, at))}


def watching(personal: Tree) -> Tree:
    """Return the personal state of a client that adapts its step size: with L_i, which is 1/γ_i until it moves."""
    return {**personal, ".smoothness": 1 / personal[".gamma"]}


def watched(task: Task, personal: Tree, start: Tree, end: Tree, data: Data, mu: float) -> Tree:
    """Return the personal state with L_i raised to the smoothness of f_i between two models, if L_i is watched."""
    if ".smoothness" not in personal:
        return personal
    seen = secant(task, start, end, data, mu)
    return {**personal, ".smoothness": torch.maximum(personal[".smoothness"], seen)}


def adapted(personal: Tree) -> Tree:
    """Return the personal state with γ_i = 1/L_i, if L_i is watched."""
    return {**personal, ".gamma": 1 / personal[".smoothness"]} if ".smoothness" in personal else personal


def optimal_p(gamma: float | str | Mapping[str, float], measured: Mapping[str, Mapping[str, float]]) -> float:
    """Return the best probability of communication, from the strong convexity and the step size of each client."""
    steps = {name: own_value("gamma", gamma, name) for name in measured} if isinstance(gamma, Mapping) else {}
    return best_p(client["mu"] * (steps[name] if steps else client["step"]) for name, client in measured.items())


def own_value(field: str, by_name: Mapping[str, float], client: str) -> float:
    """Return a client's value of a field that is given by client name."""
    if client not in by_name and "new" not in by_name:
        raise UserError(
            f"method.{field} has no value for client {client!r}: name all clients, add one value for all others under "
            f'the name "new", or give one number'
        )
    return by_name[client if client in by_name else "new"]


def with_optimum(task: Task, personal: Tree, data: Data, mu: float, how: Search) -> Tree:
    """Return the personal state with x_i*, and with the local buffers that the search for it leaves.

    With α_i = 1 the optimum has no effect, and no search is done.
    """
    if float(personal[".alpha"]) == 1:
        how = how._replace(epochs=0)
    search = partial(minimum, task, {**task.initial, **pick(personal, task.local_buffers)}, data, mu, how)
    memory = Optima.innermost
    best = search()[0] if memory is None else memory.recall(_key(task, personal, data, mu, how), lambda: search()[0])
    return {**personal, **pick(best, task.local_buffers), **under("optimum", pick(best, task.params))}


class Optima:
    """Context in which local optima are remembered, together with the cost of finding them.

    Runs that agree in everything the search depends on share the result. Models are told apart by their printed form,
    which is enough for the models of this package.
    """

    innermost: ClassVar["Optima | None"] = None
    """The context that is active now."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Tree, int]] = {}
        self._bytes = 0

    def __enter__(self) -> Self:
        self._around, Optima.innermost = Optima.innermost, self
        return self

    def __exit__(self, *error: object) -> None:
        Optima.innermost = self._around

    def recall(self, key: str, search: Callable[[], Tree]) -> Tree:
        """Return the remembered optimum, or search for it and remember it."""
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
"""Maximum number of bytes of local optima that are remembered."""


def _key(task: Task, personal: Tree, data: Data, mu: float, how: Search) -> str:
    """Return a key of everything that a search depends on."""
    x = data.x._asdict() if isinstance(data.x, Graph) else {"x": data.x}
    examples = {**x, "y": data.y, "mask": data.mask, "stream": data.stream}
    trees = (task.initial, pick(personal, task.local_buffers), examples)
    drawn = torch.initial_seed() if task.is_random else 0
    return repr((str(task.module(task.initial)), task.objective, mu, how, drawn, *map(digest, trees)))
