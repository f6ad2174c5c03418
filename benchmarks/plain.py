"""Federated learning as a user would write it: plain PyTorch loops over clients, with `torch.optim`.

The loops are idiomatic and use all threads of PyTorch. They are given the initial states and the batches that Coterie
draws, so that both end in the same model, which a test checks. This file does not import Coterie, and it is timed in a
process of its own: Coterie changes how the process that it runs in keeps freed memory, which makes plain loops faster.
"""

import copy
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Tree = dict[str, Tensor]
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


def serve(done: Callable[[float], None], pickled: bytes, method: str, settings: dict[str, float]) -> None:
    """Play rounds of a pickled `Plain` for a `Child`. Tensors that are not pickled would need a file each."""
    plain: Plain = pickle.loads(pickled)  # noqa: S301 - the parent process made it
    while True:
        start = time.perf_counter()
        getattr(plain, method)(**settings)
        done(time.perf_counter() - start)


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
