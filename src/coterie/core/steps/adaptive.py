"""Local steps by Adam."""

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.data import Data
from coterie.core.steps.batches import turns
from coterie.core.steps.local import local_gradient
from coterie.core.steps.server import adam, adam_memory
from coterie.core.task import Task
from coterie.core.tree import Tree, pick


def local_adam(
    task: Task, params: Tree, data: Data, steps: int, rate: Callable[[int], float | Tensor], batch: int = 0
) -> tuple[Tree, Tensor]:
    """Take local steps of Adam, whose moments start from zero. Arguments and results are those of `local_sgd`."""
    after, loss = task.laid_out(params), torch.zeros(())
    memory = adam_memory(pick(after, task.params))
    for turn in turns(steps, data, batch):
        g, value, buffers = local_gradient(task, after, turn.batch, task.params)
        stepped, memory = adam(pick(after, task.params), memory, g, rate(turn.step))
        after = turn.kept({**after, **stepped, **buffers}, after)
        loss = turn.kept_value(value, loss)
    return after, loss
