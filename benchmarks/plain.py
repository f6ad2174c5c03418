"""Federated learning as a user would write it: plain PyTorch loops over clients, with `torch.optim`.

The loops are idiomatic and use all threads of PyTorch. They are given the initial states and the batches that Coterie
draws, so that both end in the same model, which a test checks.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from coterie.clients.workload import Workload
from coterie.core.steps import turns
from coterie.core.tree import Tree

Batches = Sequence[tuple[Tensor, Tensor]]


class Client(NamedTuple):
    """A client with its batches of one round, in order."""

    batches: Batches
    size: int
    head: Tree
    """Its own head at the start, if it has one."""


class Plain(NamedTuple):
    """A model and the clients of a cohort."""

    model: nn.Module
    clients: Sequence[Client]

    @classmethod
    def first_round(cls, load: Workload, steps: int, batch: int) -> "Plain":
        """Return the initial model, and the batches that all clients draw in round 1."""
        work, clients = load.work, []
        for i, name in enumerate(load.federation.ids):
            data = load.data(i, "train", 1)
            batches = [(turn.batch.x, turn.batch.y) for turn in turns(steps, data, batch)]
            personal = work.create(name, load.num_outputs(i))
            clients.append(Client(batches, len(data.y), {} if work.shares_head else personal))
        return cls(work.task.module(work.task.initial).train(), clients)

    def fedavg(self, rate: float) -> Tree:
        """Return the average of the clients' models after local SGD."""
        average = {name: torch.zeros(value.shape) for name, value in self.model.state_dict().items()}
        for client, share in self._shares():
            model = copy.deepcopy(self.model)
            train(model, client.batches, model.parameters(), rate)
            for name, value in model.state_dict().items():
                average[name] += value * share
        return average

    def fedrep(self, rate: float, body_steps: int) -> Tree:
        """Return the average of the bodies, after each client has trained its own head and then the body."""
        average = {name: torch.zeros_like(value) for name, value in self._body(self.model).items()}
        for client, share in self._shares():
            model = copy.deepcopy(self.model)
            model.load_state_dict(client.head, strict=False)
            head_steps = len(client.batches) - body_steps
            model.body.requires_grad_(False)
            train(model, client.batches[:head_steps], model.head.parameters(), rate)
            model.requires_grad_(True)
            model.head.requires_grad_(False)
            train(model, client.batches[head_steps:], model.body.parameters(), rate)
            for name, value in self._body(model).items():
                average[name] += value * share
        return average

    def ditto(self, rate: float, lam: float) -> Tree:
        """Return the average of the clients' models. Each client also trains a personal model near the shared one."""
        shared = [value.detach() for value in self.model.parameters()]
        for client in self.clients:
            personal = copy.deepcopy(self.model)

            def pull(personal: nn.Module = personal) -> Tensor:
                ways = (own - other for own, other in zip(personal.parameters(), shared, strict=True))
                return lam / 2 * torch.stack([way.square().sum() for way in ways]).sum()

            train(personal, client.batches, personal.parameters(), rate, pull)
        return self.fedavg(rate)

    def _shares(self) -> list[tuple[Client, float]]:
        total = sum(client.size for client in self.clients)
        return [(client, client.size / total) for client in self.clients]

    @staticmethod
    def _body(model: nn.Module) -> Tree:
        return {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}


def train(
    model: nn.Module,
    batches: Batches,
    parameters: Iterable[nn.Parameter],
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
