"""The default rule: a weighted sum, computed as replies come, so that memory does not grow with the cohort."""

from typing import Self

import torch
from torch import Tensor

from coterie.aggregate.rule import Rule, Sum
from coterie.core.round import Update
from coterie.core.tree import Tree, is_finite
from coterie.settings import settings


@settings
class Mean(Rule):
    """The sum of w_i reply_i, with the weights of the method."""

    takes_sums = True

    def start(self) -> "WeightedSum":
        return WeightedSum()


class WeightedSum(Sum):
    """A running weighted sum of replies."""

    def __init__(self) -> None:
        self._tensors: Tree = {}
        self._numbers: Tree = {}
        self._weight = 0.0

    def add(self, weights: Tensor, tensors: Tree, numbers: Tree) -> None:
        trees = [{name: _floating(value) for name, value in tree.items()} for tree in (tensors, numbers)]
        kinds = {(value.dtype, value.device): value for tree in trees for value in tree.values()}
        own = {kind: weights.to(value) for kind, value in kinds.items()}  # they go to a device once for each type
        tensors, numbers = (
            {name: torch.tensordot(own[value.dtype, value.device], value, dims=1) for name, value in tree.items()}
            for tree in trees
        )
        self.add_sum(float(weights.sum()), tensors, numbers)

    def add_sum(self, weight: float, tensors: Tree, numbers: Tree) -> None:
        self._weight += weight
        self._tensors = _plus(self._tensors, tensors)
        self._numbers = _plus(self._numbers, numbers)

    def merge(self, other: Self) -> None:
        self.add_sum(other._weight, other._tensors, other._numbers)

    def is_finite(self) -> bool:
        return is_finite(self._tensors, self._numbers)

    def result(self) -> Update:
        return Update(self._tensors, self._numbers, torch.tensor(self._weight, dtype=torch.float64))


def _plus(total: Tree, more: Tree) -> Tree:
    return {**total, **{name: total[name] + value if total else value for name, value in more.items()}}


def _floating(value: Tensor) -> Tensor:
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())
