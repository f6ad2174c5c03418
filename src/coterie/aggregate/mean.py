"""The default rule: a weighted sum, taken as the messages come, so that memory does not grow with the cohort."""

from typing import ClassVar, Self

import torch
from torch import Tensor

from coterie.aggregate.rule import Rule, Total
from coterie.core.tree import Tree
from coterie.settings import settings


@settings
class Mean(Rule):
    """sum_i w_i message_i with the method's own weights."""

    takes_sums: ClassVar[bool] = True

    def start(self) -> Total:
        return WeightedSum()


class WeightedSum(Total):
    def __init__(self) -> None:
        self._total: Tree = {}
        self._weight = 0.0

    def add(self, weights: Tensor, messages: Tree) -> None:
        self.add_sum(float(weights.sum()), {name: _dot(weights, value) for name, value in messages.items()})

    def add_sum(self, weight: float, summed: Tree) -> None:
        self._weight += weight
        self._total |= {name: self._total[name] + value if self._total else value for name, value in summed.items()}

    def merge(self, other: Self) -> None:
        self.add_sum(other._weight, other._total)

    def result(self) -> Tree:
        return {**self._total, "weight": torch.tensor(self._weight, dtype=torch.float64)}


def _dot(weights: Tensor, value: Tensor) -> Tensor:
    value = value if value.is_floating_point() else value.to(torch.get_default_dtype())
    total: Tensor = torch.tensordot(weights.to(value), value, dims=1)
    return total
