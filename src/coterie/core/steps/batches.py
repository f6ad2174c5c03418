"""A client's local steps, and the minibatch of each."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from coterie.core.data import Data, Graph
from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.settings import Epochs
from coterie.streams import bits


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


def num_steps(steps: int, data: Data, size: int) -> int | Tensor:
    """How many local steps this client takes; a tensor where that depends on how many examples it has."""
    if not isinstance(steps, Epochs) or size == 0 or size >= data.mask.shape[0]:
        return int(steps)
    return steps * epoch_steps(data, size)


class Turn(NamedTuple):
    """One local step of a client, or of others that are computed together with it and have more examples."""

    step: int
    """0, 1, ..."""
    batch: Data
    last: bool | Tensor
    """Whether it is the client's last."""
    own: Tensor | None
    """Whether it is the client's at all; None if it is everyone's."""

    def kept(self, after: Tree, before: Tree) -> Tree:
        """What the step leaves: as it was, if it is not the client's."""
        if self.own is None:
            return after
        return {name: torch.where(self.own, value, before[name]) for name, value in after.items()}


def turns(steps: int, data: Data, size: int) -> Iterator[Turn]:
    """The local steps of a round, with their minibatches."""
    mine = num_steps(steps, data, size)
    most = mine if isinstance(mine, int) else steps * math.ceil(data.mask.shape[0] / size)
    for step in range(most):
        own = None if isinstance(mine, int) else step < mine
        yield Turn(step, minibatch(data, size, step), step + 1 == mine, own)
