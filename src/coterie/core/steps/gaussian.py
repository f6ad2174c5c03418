"""Functions that methods share whose features are random: the distribution of features, samples, and classes."""

import torch
from torch import Tensor

from coterie.core.data import Data
from coterie.core.gaussian import Normal, normal_of
from coterie.core.task import Task
from coterie.core.tree import Tree


def distribution(task: Task, features: Tensor) -> Normal:
    """Return the distribution of each example's representation.

    If the head does not begin with a `Gaussian`, a representation is the features themselves, with a deviation of one
    that nothing is drawn with.
    """
    return normal_of(features) if task.is_gaussian else Normal(features, torch.ones_like(features))


def sampled(task: Task, features: Tensor) -> Tensor:
    """Draw a representation of each example, as a training pass through the head does."""
    return normal_of(features).draw() if task.is_gaussian else features


def loss_of_sample(task: Task, params: Tree, sample: Tensor, data: Data) -> Tensor:
    """Return the training loss of given representations, in which the head draws no further numbers."""
    if not task.is_gaussian:
        return task.head_loss(params, sample, data)
    return task.mean_loss(task.head_outputs(params, torch.cat([sample, sample], -1)), data)


def loss_of_samples(task: Task, params: Tree, features: Tensor, data: Data, count: int) -> Tensor:
    """Return the training loss of the head, averaged over `count` passes with fresh random numbers."""
    if count == 1:
        return task.head_loss(params, features, data)
    repeated, y, mask = (torch.cat([part] * count) for part in (features, data.y, data.mask))
    return task.head_loss(params, repeated, data._replace(y=y, mask=mask))


def classes_of(data: Data) -> Tensor:
    """Return the class of each answer, in the shape of y. Numbers to predict all have class 0."""
    return torch.zeros_like(data.y, dtype=torch.int64) if data.y.is_floating_point() else data.y.clamp(min=0)


def mean_over_answers(task: Task, each: Tensor, data: Data) -> Tensor:
    """Average values, one for each answer in the shape of y, over the answers that count."""
    counted = task.objective.counted(data.y, data.mask)
    return torch.where(counted, each, 0).sum() / counted.sum()


def class_table(task: Task) -> Tensor:
    """Return zeros (C, d): a row for each class, in the size of a representation."""
    d = task.num_features // 2 if task.is_gaussian else task.num_features
    return task.initial[task.params[0]].new_zeros(task.num_outputs, d)
