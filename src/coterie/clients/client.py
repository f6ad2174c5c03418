"""What clients are asked to do: pure functions of (setup, shared, what the client has, its data), as every engine runs
them. They hold tensors only and never look into one, so that they also run for many clients at once."""

import torch

from coterie.clients.setup import Setup
from coterie.core.method import Data, Round, Tree


def update(setup: Setup, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
    """(message, personal)"""
    return setup.method.local_update(setup.task, shared, personal, data, rnd)


def receive(setup: Setup, shared: Tree, personal: Tree, rnd: Round) -> tuple[Tree]:
    return (setup.method.receive(setup.task, shared, personal, rnd),)


def adapt(setup: Setup, shared: Tree, personal: Tree, data: Data, steps: int) -> tuple[Tree]:
    return (setup.method.adapt(setup.task, shared, personal, data, steps),)


@torch.no_grad()
def score(setup: Setup, shared: Tree, personal: Tree, data: Data) -> tuple[Tree]:
    """What the answers of the client's model are worth."""
    if not len(data.y):  # not every model takes an empty batch
        return (dict.fromkeys(("examples", "right", "restricted"), data.stream.new_zeros(())),)
    outputs = setup.method.predict(setup.task, shared, personal, data.x)
    return (setup.task.objective.scores(outputs, data.y, data.mask, data.classes),)


def score_updated(setup: Setup, shared: Tree, message: Tree, personal: Tree, data: Data) -> tuple[Tree]:
    """The same right after the local update, before anything was sent."""
    return score(setup, setup.method.local_shared(shared, message), personal, data)


@torch.no_grad()
def loss(setup: Setup, shared: Tree, personal: Tree, data: Data) -> tuple[Tree]:
    """The loss of the client's model as it is used."""
    outputs = setup.method.predict(setup.task, shared, personal, data.x)
    return ({"loss": setup.task.mean_loss(outputs, data)},)
