"""Local SGD on a chain of dense layers, for one client or for many at once, with gradients in closed form.

`local_sgd` takes this path for models that are a chain (`core/chain.py`). Its result is the same up to rounding. There
is no tape, and no gradient is stored unless there is momentum: a step adds a product to the weights in place.

The layers are in `core/steps/dense_layers.py`, with a first layer that needs fewer operations than its naive products.

Shapes: C clients, N examples with D features, B examples per step, H outputs of a layer, K outputs of the model.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType

from coterie.core.chain import Dense
from coterie.core.counting import counts_declared_work
from coterie.core.data import Data
from coterie.core.steps.batches import without_padding
from coterie.core.steps.dense_layers import Batch, Front, Given, Plan, Rate, build_layers, rows_of, span_is_cheaper
from coterie.core.steps.stacked import for_all, transforms
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
    if transforms() == [TransformType.Vmap]:
        return task.chain is not None
    return not transforms() and bool(task.chain or task.tail)


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
    trained, loss = for_all(partial(_descend, plan), given)
    return {**params, **trained}, loss


def _descend(plan: Plan, given: Given) -> tuple[Tree, Tensor]:
    """Take the local steps of C clients. Returns (trained parameters, loss (C,) at the last gradient)."""
    batches, in_span = _whole(plan, given), span_is_cheaper(plan, given)
    if plan.size and (given.mask is None or (plan.epochs and (plan.epochs == 1 or not plan.momentum))):
        numbers = None
        if in_span:
            given, numbers = _in_order_of_use(plan, given)
        batches = _in_step(plan, given, numbers)
    elif plan.size:
        batches = _each_at_its_own_pace(plan, given)
    layers = build_layers(plan, given, in_span)
    outputs = next(given.params[part.weight].shape[1] for part in plan.chain[::-1] if isinstance(part, Dense))
    first = next(iter(given.params.values()))
    targets = plan.objective.targets(given.y, outputs, first.dtype)
    loss = first.new_zeros(len(given.y))
    for step, batch in enumerate(batches):
        h: Any = batch
        for layer in layers:
            h = layer.forward(h)
        share, rate = batch.share(h.dtype), _rate(plan, given, batch)
        if step + 1 == plan.steps or batch.own is not None:
            each = plan.objective.losses(h.flatten(0, 1), batch.take(given.y).flatten()).view(h.shape[:2])
            value = (share * each).sum(1)
            loss = value if batch.own is None else torch.where(batch.own, value, loss)
        g = plan.objective.residual(h, batch.take(targets)).mul_(share[..., None])
        for layer in reversed(layers):
            g = layer.backward(g, rate)
    return {name: value for layer in layers for name, value in layer.trained().items()}, loss


def _rate(plan: Plan, given: Given, batch: Batch) -> Rate:
    """Return the rate of a step, which is 0 for clients that do not take it."""
    own, step, dtype = batch.own, batch.step, next(iter(given.params.values())).dtype
    rate: Rate
    if isinstance(step, int):
        rate = plan.rates[step] if given.rates is None else given.rates[:, step, None, None]
    elif len(set(plan.rates)) == 1:
        rate = plan.rates[0]
    else:
        rates = torch.tensor(plan.rates, dtype=dtype).to(step.device) if given.rates is None else given.rates
        rate = rates.expand(len(step), -1).gather(1, step.clamp(max=plan.steps - 1)[:, None])[..., None]
    return rate if own is None else rate * own[:, None, None].to(dtype)


# -- the batches of all steps, with the same examples as `minibatch`; no value leaves the device


def _counted(plan: Plan, given: Given) -> Tensor:
    mask = torch.ones_like(given.y, dtype=torch.bool) if given.mask is None else given.mask
    return plan.objective.counted(given.y, mask)


def _whole(plan: Plan, given: Given) -> Iterator[Batch]:
    """Yield all examples in each step."""
    counted = _counted(plan, given)
    for step in range(plan.steps):
        yield Batch(slice(None), counted, given.y.shape[1] if step else 0, step)


def _in_order_of_use(plan: Plan, given: Given) -> tuple[Given, Tensor]:
    """Put the examples in the order of the first epoch, so that its batches are ranges, and drop unused examples.

    Returns (what clients start from, the numbers (C, N) that their examples had before).
    """
    C, N = given.y.shape
    order = _shuffled(given, 0, torch.arange(N, device=given.y.device))[:, : plan.steps * plan.size]
    rows = order + N * torch.arange(C, device=order.device)[:, None]
    mask = None if given.mask is None else rows_of(given.mask, rows)
    return given._replace(x=rows_of(given.x, rows), y=rows_of(given.y, rows), mask=mask), order


def _in_step(plan: Plan, given: Given, numbers: Tensor | None) -> Iterator[Batch]:
    """Yield batches of clients that begin each epoch together, and wait for the largest.

    `numbers` are those that the examples had before they were put in the order of use, or None if they were not.
    """
    (C, N), counted = given.y.shape, _counted(plan, given)
    start = (torch.arange(C, device=counted.device) * N)[:, None]
    names = torch.arange(N, device=counted.device) if numbers is None else numbers
    every = math.ceil(N / plan.size)
    length = None if given.mask is None else (given.mask.sum(1) + plan.size - 1) // plan.size  # steps of an epoch, (C,)
    for step in range(plan.steps):
        epoch, turn = divmod(step, every)
        part = slice(turn * plan.size, (turn + 1) * plan.size)
        is_range = numbers is not None and not epoch
        if not is_range and not turn:
            order = _shuffled(given, epoch, names) + start
        batch = Batch(part, counted, part.start, step) if is_range else Batch(order[:, part], counted, N, step)
        if length is not None:
            batch = batch._replace(step=epoch * length + turn, own=turn < length)
        yield batch._replace(counted=batch.take(counted))


def _each_at_its_own_pace(plan: Plan, given: Given) -> Iterator[Batch]:
    """Yield batches of clients with padding, who begin their epochs at different steps."""
    assert given.mask is not None
    (C, N), counted = given.y.shape, _counted(plan, given)
    numbers, place = torch.arange(N, device=counted.device), torch.arange(plan.size, device=counted.device)
    start = (torch.arange(C, device=counted.device) * N)[:, None]
    n = given.mask.sum(1, keepdim=True)
    length = (n + plan.size - 1) // plan.size  # steps of an epoch, (C, 1)
    for step in range(plan.steps):
        here = step % length * plan.size + place
        order = _shuffled(given, step // length, numbers) + start
        batch = Batch(order.gather(1, here % n), counted, N, step)
        if plan.epochs:
            batch = batch._replace(own=step < plan.epochs * length[:, 0])
        yield batch._replace(counted=batch.take(counted) & (here < n))


def _shuffled(given: Given, epoch: int | Tensor, numbers: Tensor) -> Tensor:
    """Return the places (C, N) of the examples in the order of an epoch, given their numbers. Padding comes last."""
    epoch = numbers.new_full((), epoch) if isinstance(epoch, int) else epoch  # made on the device
    rank = bits(given.stream[:, None], epoch, numbers)
    return (rank if given.mask is None else torch.where(given.mask, rank, torch.iinfo(torch.int64).max)).argsort()
