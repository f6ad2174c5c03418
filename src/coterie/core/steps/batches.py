"""The local steps of a client, and the minibatch of each step."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import TransformType
from torch.nn.functional import embedding

from coterie.core.data import Data, Graph
from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.settings import Epochs
from coterie.streams import bits


def without_padding(data: Data) -> bool:
    """Return whether it is known that no example is padding.

    Under vmap it is known if all clients share one mask, because the engine passes one only if nobody has padding. The
    device is not asked then.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(data.mask):
        return False
    levels = torch._C._functorch.get_interpreter_stack() or []
    return any(level.key() == TransformType.Vmap for level in levels) or bool(data.mask.all())


def epoch_steps(data: Data, size: int) -> Tensor:
    """Return the number of batches of that size in one pass over the examples."""
    n = data.mask.sum()
    return (n + size - 1) // size if size else torch.ones_like(n)


def minibatch(data: Data, size: int, step: int | Tensor) -> Data:
    """Return the batch of local step 0, 1, ... Each epoch is a fresh shuffle, and its last batch may be short.

    Size 0, or a size that the examples do not fill, gives all examples. The function runs under vmap. Clients with
    padding do not know there how short their last batch is. It is filled up with the first examples of the epoch,
    masked, which changes nothing unless examples affect each other. Models in which they do (BatchNorm) are never
    computed with padding.
    """
    N = data.mask.shape[0]
    if size == 0 or size >= N:
        return data
    if isinstance(data.x, Graph):
        raise UserError("a graph cannot be cut into minibatches: set the method's batch_size to 0")
    n, length = data.mask.sum(), epoch_steps(data, size)
    rank = bits(data.stream, torch.div(step, length, rounding_mode="floor"), torch.arange(N, device=n.device))
    order = torch.where(data.mask, rank, torch.iinfo(torch.int64).max).argsort()
    if without_padding(data):
        start = step % math.ceil(N / size) * size
        chosen = order[start : start + size]
        mask = data.mask[: chosen.shape[-1]]
    else:
        place = (step % length) * size + torch.arange(size, device=n.device)
        chosen, mask = order[place % n], place < n
    rows = embedding(chosen, data.x.flatten(1))  # data.x[chosen], but fast under vmap
    x = rows.reshape(len(mask), *data.x.shape[1:])
    return data._replace(x=x, y=data.y[chosen], mask=mask)


def num_steps(steps: int, data: Data, size: int) -> int | Tensor:
    """Return the number of local steps of this client, as a tensor if it depends on the number of examples."""
    if not isinstance(steps, Epochs) or size == 0 or size >= data.mask.shape[0]:
        return int(steps)
    if without_padding(data):
        return int(steps) * math.ceil(data.mask.shape[0] / size)
    return steps * epoch_steps(data, size)


class Turn(NamedTuple):
    """One local step of a client, or of other clients that are computed with it and have more examples."""

    step: int
    """Number of the step: 0, 1, ..."""
    batch: Data
    last: bool | Tensor
    """Whether it is the last step of this client."""
    own: Tensor | None
    """Whether it is a step of this client at all; None if all clients take it."""

    def kept(self, after: Tree, before: Tree) -> Tree:
        """Return the result of the step: `after`, or `before` if it is not a step of this client."""
        return {name: self.kept_value(value, before[name]) for name, value in after.items()}

    def kept_value(self, after: Tensor, before: Tensor) -> Tensor:
        """Return the result of the step for a single tensor."""
        return after if self.own is None else torch.where(self.own, after, before)


def turns(steps: int, data: Data, size: int) -> Iterator[Turn]:
    """Yield the local steps of a round with their minibatches."""
    mine = num_steps(steps, data, size)
    most = mine if isinstance(mine, int) else steps * math.ceil(data.mask.shape[0] / size)
    for step in range(most):
        own = None if isinstance(mine, int) else step < mine
        yield Turn(step, minibatch(data, size, step), step + 1 == mine, own)
