"""Local SGD on a chain of dense layers, for one client or for many at once, with gradients in closed form.

`local_sgd` takes this path for models that are a chain (`core/chain.py`). Its result is the same up to rounding. There
is no tape, and no gradient is stored unless there is momentum: a step adds a product to the weights in place.

The layers are in `core/steps/dense_layers.py`, with a first layer that needs fewer operations than its naive products.

Shapes: C clients, N examples with D features, B examples per step, H outputs of a layer, K outputs of the model.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack

from coterie.core.chain import Dense
from coterie.core.counting import counts_declared_work
from coterie.core.data import Data
from coterie.core.steps.batches import without_padding
from coterie.core.steps.dense_layers import Batch, Front, Given, Plan, Rate, build_layers
from coterie.core.task import Task
from coterie.core.tree import Tree, pick
from coterie.settings import Epochs
from coterie.streams import bits


def takes_dense_path(task: Task, data: Data, steps: int) -> bool:
    """Return whether `dense_sgd` can take the steps: outside of `grad`, and while nobody counts them.

    It takes the steps of a chain of dense layers, also under vmap, and of one client if the model ends in such a chain.
    """
    if not steps or not isinstance(data.x, Tensor) or data.y.ndim != 1 or counts_declared_work():
        return False
    levels = [level.key() for level in get_interpreter_stack() or ()]
    return task.chain is not None if levels == [TransformType.Vmap] else not levels and bool(task.chain or task.tail)


@torch.no_grad()
def dense_sgd(
    task: Task,
    params: Tree,
    data: Data,
    steps: int,
    rate: float | Tensor | Callable[[int], float | Tensor],
    batch: int,
    over: Sequence[str],
    momentum: float,
    mu: float,
    centre: Tree | None,
    control: Tree | None,
) -> tuple[Tree, Tensor]:
    """Take local gradient steps. Arguments and results are those of `local_sgd`, with the pull as mu and centre."""
    chain, front = task.chain, None
    if chain is None:
        assert task.tail is not None
        chain, front = task.tail, Front(task.front, task.front_params, task.buffers)
    N = len(data.y)
    size = batch if batch < N else 0
    epochs = int(steps) if size and isinstance(steps, Epochs) else 0
    most = epochs * math.ceil(N / size) if epochs else int(steps)
    rates = [rate(step) if callable(rate) else rate for step in range(most)]
    plain = [each for each in rates if not isinstance(each, Tensor)]
    if len(plain) < most:
        plain = []
    own = task.laid_out(pick(params, task.params + task.buffers))
    given = Given(
        params=own,
        centre=pick(centre, over) if centre and mu else {},
        control=pick(control, over) if control else {},
        x=data.x if front else data.x.flatten(1),
        y=data.y,
        mask=None if size and without_padding(data) else data.mask,
        stream=data.stream,
        rates=None if plain else torch.stack([torch.as_tensor(each).to(next(iter(own.values()))) for each in rates]),
    )
    plan = Plan(chain, task.objective, frozenset(over), most, epochs, size, momentum, mu, plain, front)
    if get_interpreter_stack():
        trained, loss = _Vmapped.apply(plan, given)  # type: ignore[no-untyped-call]
    else:
        trained, losses = _descend(plan, _mapped(given, lambda value: value[None]))
        trained, loss = {name: value[0] for name, value in trained.items()}, losses[0]
    return {**params, **trained}, loss


class _Vmapped(torch.autograd.Function):
    """The local steps of all clients of a vmap at once."""

    @staticmethod
    def forward(plan: Plan, given: Given) -> tuple[Tree, Tensor]:  # noqa: ARG004
        """Refuse to run without a vmap."""
        raise AssertionError("it is called under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: local steps are not differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, plan: Plan, given: Given) -> Any:
        """Return (trained parameters, losses), and the axes of the clients in them."""

        def stacked(value: Tensor, axis: int | None) -> Tensor:
            """Return a tensor with the axis of the clients in front."""
            return value.expand(info.batch_size, *value.shape) if axis is None else value.movedim(axis, 0)

        trained, losses = _descend(plan, _mapped(given, stacked, in_dims[1]))
        return (trained, losses), (dict.fromkeys(trained, 0), 0)


def _mapped(given: Given, function: Callable[..., Tensor], *others: Any) -> Given:
    """Apply a function to each tensor, and to what has its place in `others`."""

    def of(value: Any, *parts: Any) -> Any:
        """Apply it to a tensor, to all tensors of a tree, or not at all."""
        if isinstance(value, dict):
            return {name: function(each, *(part[name] for part in parts)) for name, each in value.items()}
        return None if value is None else function(value, *parts)

    return Given(*(of(*parts) for parts in zip(given, *others, strict=True)))


def _descend(plan: Plan, given: Given) -> tuple[Tree, Tensor]:
    """Take the local steps of C clients. Returns (trained parameters, loss (C,) at the last gradient)."""
    layers = build_layers(plan, given)
    outputs = next(given.params[part.weight].shape[1] for part in plan.chain[::-1] if isinstance(part, Dense))
    first = next(iter(given.params.values()))
    targets = plan.objective.targets(given.y, outputs, first.dtype)
    mine = _own_steps(plan, given)
    fewest = plan.steps if mine is None else 0
    loss = first.new_zeros(len(given.y))
    for step, batch in enumerate(_batches(plan, given)):
        own = None if mine is None else mine > step
        h: Any = batch
        for layer in layers:
            h = layer.forward(h)
        share = batch.share(h)
        if step + 1 >= fewest:
            each = plan.objective.losses(h.flatten(0, 1), batch.take(given.y).flatten()).view(h.shape[:2])
            value = (share * each).sum(1)
            loss = value if own is None else torch.where(own, value, loss)
        g = plan.objective.residual(h, batch.take(targets)).mul_(share[..., None])
        rate = _rate(plan, given, step, own)
        for layer in reversed(layers):
            g = layer.backward(g, rate)
    return {name: value for layer in layers for name, value in layer.trained().items()}, loss


def _own_steps(plan: Plan, given: Given) -> Tensor | None:
    """Return the number of steps (C,) of each client, or None if all take the same number."""
    if given.mask is None or not plan.epochs:
        return None
    return plan.epochs * ((given.mask.sum(1) + plan.size - 1) // plan.size)


def _rate(plan: Plan, given: Given, step: int, own: Tensor | None) -> Rate:
    """Return the rate of a step, which is 0 for clients that have taken all their steps."""
    rate = plan.rates[step] if given.rates is None else given.rates[:, step, None, None]
    return rate if own is None else rate * own[:, None, None].to(next(iter(given.params.values())).dtype)


def _batches(plan: Plan, given: Given) -> Iterator[Batch]:
    """Yield the batches of all steps, with the same examples as `minibatch`. No value leaves the device."""
    C, N = given.y.shape
    mask = torch.ones_like(given.y, dtype=torch.bool) if given.mask is None else given.mask
    counted = plan.objective.counted(given.y, mask)
    if not plan.size:
        yield from (Batch(None, counted) for _ in range(plan.steps))
        return
    examples, place = torch.arange(N, device=mask.device), torch.arange(plan.size, device=mask.device)
    start = (torch.arange(C, device=mask.device) * N)[:, None]
    n = mask.sum(1, keepdim=True)
    length = (n + plan.size - 1) // plan.size  # steps of an epoch, (C, 1)
    every = 1 if given.mask is not None else math.ceil(N / plan.size)  # how often a client may begin an epoch
    for step in range(plan.steps):
        if step % every == 0:
            rank = bits(given.stream[:, None], step // length, examples)
            order = torch.where(mask, rank, torch.iinfo(torch.int64).max).argsort() + start
        if given.mask is None:
            begin = step % every * plan.size
            batch = Batch(order[:, begin : begin + plan.size], counted)
            yield batch._replace(counted=batch.take(counted))
        else:
            here = step % length * plan.size + place
            batch = Batch(order.gather(1, here % n), counted)
            yield batch._replace(counted=batch.take(counted) & (here < n))
