"""Learning rates that change from one local step to the next."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from coterie.core.data import Data
from coterie.core.round import Round
from coterie.core.schedule import Place, Schedule, schedule
from coterie.core.steps.batches import epoch_steps, num_steps
from coterie.core.task import Task
from coterie.settings import Epochs

LocalRates = Callable[[int], float | Tensor]
"""A function from a local step 0, 1, ... to its rate."""


def local_rates(
    task: Task, rate: float, decay: str | Sequence[float], data: Data, rnd: Round, batch: int = 0
) -> LocalRates:
    """Return the rate of each local step of a round, which starts at `rate` and follows a schedule.

    Args:
        task: the model, whose parameters have the type of the rates.
        rate: learning rate before the schedule.
        decay: the schedule, as `core.schedule` describes it.
        data: the client's examples.
        rnd: the round, with its number of steps.
        batch: examples per step; 0 means all.
    """
    factor = local_factors(task, schedule(decay), data, rnd, batch)
    return lambda k: rate * factor(k)


def local_factors(
    task: Task, factor: Schedule, data: Data, rnd: Round, batch: int = 0, unit: Literal["step", "epoch"] = "step"
) -> LocalRates:
    """Return the factor of each local step, from a schedule that counts steps or passes over the client's examples."""
    like = task.initial[task.params[0]]
    if unit == "step":
        steps = num_steps(rnd.steps, data, batch)
        K = steps if isinstance(steps, int) else steps.to(like.dtype)
        return lambda k: factor(Place(k, K, rnd.index))
    length = epoch_steps(data, batch)
    K = int(rnd.steps) if isinstance(rnd.steps, Epochs) else ((rnd.steps + length - 1) // length).to(like.dtype)
    factors = [factor(Place(e, K, rnd.index)) for e in range(rnd.steps)]
    table = torch.stack([each if isinstance(each, Tensor) else like.new_tensor(each) for each in factors])
    return lambda k: table[(k // length).clamp(max=rnd.steps - 1)]
