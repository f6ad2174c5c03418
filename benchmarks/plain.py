"""What a user would write: federated learning as plain PyTorch loops over clients, with `torch.optim`.

The loops are idiomatic and use all threads of PyTorch. They are given the batches that Coterie draws, so that both end
in the same model, which a test checks.
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.clients.workload import Workload
from coterie.core.steps import turns
from coterie.core.tree import Tree

Batches = list[tuple[Tensor, Tensor]]


class Client(NamedTuple):
    """A client with its batches of one round, in order."""

    batches: Batches
    size: int


class Plain(NamedTuple):
    """A model and the clients of a cohort."""

    model: nn.Module
    clients: Sequence[Client]

    @classmethod
    def first_round(cls, load: Workload, steps: int, batch: int) -> "Plain":
        """Return the initial model, and the batches that all clients draw in round 1."""
        clients = []
        for i in range(len(load.federation.ids)):
            data = load.data(i, "train", 1)
            batches = [(turn.batch.x, turn.batch.y) for turn in turns(steps, data, batch)]
            clients.append(Client(batches, len(data.y)))
        return cls(load.work.task.module(load.work.task.initial).train(), clients)

    def fedavg(self, rate: float) -> Tree:
        """Return the average of the clients' models after local SGD."""
        average = {name: torch.zeros_like(value) for name, value in self.model.state_dict().items()}
        total = sum(client.size for client in self.clients)
        for client in self.clients:
            model = copy.deepcopy(self.model)
            train(model, client.batches, model.parameters(), rate)
            for name, value in model.state_dict().items():
                average[name] += value * (client.size / total)
        return average

    def fedrep(self, rate: float, head_steps: int) -> Tree:
        """Return the average of the bodies. Each client trains its head, then its body."""
        average: Tree = {}
        total = sum(client.size for client in self.clients)
        for client in self.clients:
            model = copy.deepcopy(self.model)
            train(model, client.batches[:1] * head_steps, model.head.parameters(), rate)
            train(model, client.batches[head_steps:], model.body.parameters(), rate)
            for name, value in model.body.state_dict().items():
                average[name] = average.get(name, 0) + value * (client.size / total)
        return average

    def ditto(self, rate: float, lam: float) -> Tree:
        """Return the average of the clients' models, next to which each client trains a personal one."""
        for client in self.clients:
            personal, shared = copy.deepcopy(self.model), list(self.model.parameters())

            def near(personal: nn.Module = personal, shared: Sequence[Tensor] = shared) -> Tensor:
                pairs = zip(personal.parameters(), shared, strict=True)
                return lam / 2 * sum(((own - other.detach()) ** 2).sum() for own, other in pairs)

            train(personal, client.batches, personal.parameters(), rate, near)
        return self.fedavg(rate)


def train(
    model: nn.Module,
    batches: Batches,
    parameters: Sequence[nn.Parameter],
    rate: float,
    penalty: Callable[[], Tensor] | None = None,
) -> None:
    """Take one step of SGD for each batch."""
    optimizer = torch.optim.SGD(parameters, lr=rate)
    for x, y in batches:
        optimizer.zero_grad()
        outputs = model(x)
        loss = cross_entropy(outputs.flatten(0, -2), y.flatten())
        if penalty is not None:
            loss = loss + penalty()
        loss.backward()
        optimizer.step()
