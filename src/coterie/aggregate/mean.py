"""The default rule: a weighted sum, taken as the messages come, so that memory does not grow with the cohort."""

import torch

from coterie.aggregate.rule import Rule, Total
from coterie.settings import settings
from coterie.tree import Tree


@settings
class Mean(Rule):
    """sum_i w_i message_i with the method's own weights."""

    def start(self) -> Total:
        return WeightedSum()


class WeightedSum(Total):
    def __init__(self) -> None:
        self._total: Tree = {}
        self._weight = 0.0

    def add(self, weight: float, message: Tree) -> None:
        self._weight += weight
        if self._total:
            self._total = {name: total + weight * message[name] for name, total in self._total.items()}
        else:
            self._total = {name: weight * value for name, value in message.items()}

    def result(self) -> Tree:
        return {**self._total, "weight": torch.tensor(self._weight, dtype=torch.float64)}
