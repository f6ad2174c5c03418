"""The mean features of each class, and the distance of features to given ones.

Shapes: A answers with d features each, C classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from coterie.core.data import Data
from coterie.core.task import Task


class ClassSums(NamedTuple):
    """Features of a client's examples, by class. The averages of sums and shares over clients belong to all of them."""

    sums: Tensor  # (C, d): sum of the features of each class, divided by A
    shares: Tensor  # (C,): share of each class among the answers
    variance: Tensor  # (): E||g - E g||² for g = sums, estimated for A independent answers


def class_sums(task: Task, features: Tensor, data: Data) -> ClassSums:
    """Add up the features of each class."""
    f, y = features.flatten(data.y.ndim).flatten(0, -2), data.y.clamp(min=0).flatten()
    counted = task.objective.counted(data.y, data.mask).flatten().to(f.dtype)
    share, C = counted / counted.sum(), task.num_outputs
    sums = f.new_zeros(C, f.shape[-1]).index_add(0, y, share[:, None] * f)
    spread = (share * (f**2).sum(1)).sum() - (sums**2).sum()
    return ClassSums(sums, f.new_zeros(C).index_add(0, y, share), spread / counted.sum())


def class_means(sums: Tensor, shares: Tensor) -> Tensor:
    """Return the mean features of each class (C, d). A class without examples has zeros."""
    return sums / shares.clamp(min=torch.finfo(shares.dtype).tiny)[:, None]


def distance_to(centroids: Tensor, task: Task, features: Tensor, data: Data) -> Tensor:
    """Return the mean squared distance, per coordinate, of features to the centroids (C, d) of their classes."""
    counted = task.objective.counted(data.y, data.mask)
    away = features.flatten(data.y.ndim) - embedding(data.y.clamp(min=0), centroids)
    return torch.where(counted, (away**2).mean(-1), 0).sum() / counted.sum()
