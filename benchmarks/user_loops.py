"""G: rounds of Coterie, with the engine that `auto` chooses, next to the plain PyTorch loops that a user would write.

All clients take part in each round, and local steps count in epochs unless the batch is everything. The inputs are
random: 784 features or images, and for the LSTM 80 tokens out of 90, as in Shakespeare. Both sides use all threads.
"""

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.plain import Client, Plain, serve
from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import Child, Seconds, interleave, rounds, timing_recipe
from coterie.core.method import Round
from coterie.core.steps import turns
from coterie.data.federation import Federation
from coterie.data.ragged import Ragged
from coterie.prepare import prepare

RATE = 0.01
TOKENS, POSITIONS = 90, 80
MLP = {"name": "mlp", "hidden": [200]}


@dataclass(frozen=True)
class Case:
    """A method, a model and clients of one size."""

    clients: int
    examples: int
    model: dict[str, Any]
    method: dict[str, Any]
    shape: tuple[int, ...] = (784,)
    classes: int = 10
    at_least: float | None = None
    """Target: how many times as fast as the plain loop Coterie should be."""
    loop: tuple[str, dict[str, float]] = ("fedavg", {"rate": RATE})
    """The plain loop and its settings."""

    def federation(self) -> Federation:
        """Return a federation of random examples in which every client has all classes."""
        rng, total, starts = np.random.default_rng(0), self.clients * self.examples, np.arange(self.clients + 1)
        if self.model["name"] == "lstm":
            tokens = torch.from_numpy(rng.integers(self.classes, size=(total, POSITIONS + 1)))
            x, y = tokens[:, :-1], tokens[:, 1:]
        else:
            x = torch.from_numpy(rng.random((total, *self.shape), dtype=np.float32))
            y = torch.arange(total) % self.examples % self.classes
        rows = np.arange(total)
        return Federation(
            ids=tuple(map(str, range(self.clients))),
            labels=tuple(range(self.classes)),
            x=x,
            y=y,
            splits={"train": Ragged(rows, starts * self.examples), "test": Ragged(rows[:0], starts * 0)},
            classes=Ragged(np.tile(np.arange(self.classes), self.clients), starts * self.classes),
            is_new=np.zeros(self.clients, dtype=np.bool_),
        )

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """Sections of the recipe."""
        return {"method": self.method, "model": self.model}

    def plain(self) -> Plain:
        """Return the initial model, and the batches that all clients draw in round 1."""
        data = self.federation()
        load = prepare(timing_recipe("loop", self.clients, **self.sections), data).clients.load
        work, clients = load.work, []
        steps = work.method.plan(Round(1, self.clients, data.num_examples, self.clients, 0)).steps
        for i, name in enumerate(data.ids):
            own = load.data(i, "train", 1)
            batches = [(turn.batch.x, turn.batch.y) for turn in turns(steps, own, self.method.get("batch_size", 0))]
            head = {} if work.shares_head else work.create(name, load.num_outputs(i))
            clients.append(Client(batches, len(own.y), head))
        return Plain(work.task.module(work.task.initial).train(), clients)


def fedavg(epochs: int, batch: int) -> dict[str, Any]:
    """Return the settings of FedAvg."""
    return {"name": "fedavg", "tau": f"{epochs} epochs", "batch_size": batch, "eta": RATE}


CASES = {
    "MLP, 50 x 200, batch 10, 1 epoch": Case(50, 200, MLP, fedavg(1, 10), at_least=3),
    "MLP, 50 x 200, batch 10, 5 epochs": Case(50, 200, MLP, fedavg(5, 10), at_least=4),
    "MLP, 100 x 60, batch 10, 1 epoch": Case(100, 60, MLP, fedavg(1, 10), at_least=3),
    "MLP, 100 x 60, batch 10, 5 epochs": Case(100, 60, MLP, fedavg(5, 10), at_least=4),
    "logreg, 200 x 50, batch 10": Case(200, 50, {"name": "logreg"}, fedavg(1, 10), at_least=20),
    "cnn-cifar, 10 x 200, batch 32": Case(10, 200, {"name": "cnn-cifar"}, fedavg(1, 32), (3, 32, 32), at_least=1.3),
    "cnn-femnist, 10 x 200, batch 32": Case(
        10, 200, {"name": "cnn-femnist"}, fedavg(1, 32), (28, 28), classes=62, at_least=1.3
    ),
    "LSTM, 10 x 30, batch 10": Case(10, 30, {"name": "lstm"}, fedavg(1, 10), (POSITIONS,), classes=TOKENS),
    "FedRep, MLP, 50 x 200": Case(
        50,
        200,
        MLP,
        {"name": "fedrep", "tau": 20, "body_steps": 5, "beta": RATE},
        loop=("fedrep", {"rate": RATE, "body_steps": 5}),
    ),
    "Ditto, MLP, 50 x 200, batch 10": Case(
        50,
        200,
        MLP,
        {"name": "ditto", "tau": "1 epoch", "batch_size": 10, "eta": RATE, "beta": RATE, "lam": 0.25},
        loop=("ditto", {"rate": RATE, "lam": 0.25}),
    ),
}


def measure(repeats: int) -> Result:
    """Time all cases, one after another, so that only one has its data in memory."""
    seconds: Seconds = {}
    for name, case in CASES.items():
        ours = rounds(case.federation(), "auto", case.clients, **case.sections)
        with Child(serve, pickle.dumps(case.plain()), *case.loop) as plain:
            seconds |= interleave({f"Coterie, {name}": ours, f"plain, {name}": plain}, repeats)
    return Result(
        "G: one round in plain PyTorch, as a user would write it, over one in Coterie",
        seconds,
        [
            Figure(name, ratio(seconds, f"plain, {name}", f"Coterie, {name}"), at_least=case.at_least)
            for name, case in CASES.items()
        ],
    )
