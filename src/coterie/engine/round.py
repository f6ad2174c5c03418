"""One round, from top to bottom."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from coterie import streams
from coterie.aggregate.rule import Rule
from coterie.engine.engine import Engine
from coterie.engine.store import PersonalStore
from coterie.errors import DivergedError
from coterie.federation import Federation
from coterie.method import Client, Data, Labels, Method, Round, Task, Tree
from coterie.tree import is_finite, num_bytes

Observer = Callable[[int, Tree, Tree], None]


@dataclass(frozen=True)
class Setup:
    """Who trains what, how, and by which engine."""

    method: Method
    task: Task
    federation: Federation
    labels: Labels
    engine: Engine
    aggregate: Rule
    seed: int

    def create(self, client: int) -> Tree:
        """The personal state that a client starts from."""
        name, outputs = self.federation.ids[client], self.num_outputs(client)
        return self.method.init_personal(self.task, Client(name, outputs, streams.key(self.seed, "personal", 0, name)))

    @cached_property
    def shares_head(self) -> bool:
        """Whether one head serves all clients."""
        return set(self.task.head) <= self.method.init_shared(self.task).keys()

    def num_outputs(self, client: int) -> int:
        """The width of the head that a client really has: its own, or the one that all share."""
        if self.shares_head:
            return self.task.num_outputs
        return self.federation.num_outputs(client, self.labels)

    def local_update(self, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        """The method's, with dropout and the like drawn from the client's own stream."""
        with streams.torch_seeded(int(data.stream)):
            return self.method.local_update(self.task, shared, personal, data, rnd)

    def adapt(self, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        with streams.torch_seeded(int(data.stream)):
            return self.method.adapt(self.task, shared, personal, data, steps)

    def train_data(self, client: int, index: int) -> Data:
        stream = streams.key(self.seed, "batches", index, self.federation.ids[client])
        return self.federation.data(client, "train", self.labels, stream)


@dataclass(frozen=True)
class Played:
    """What a round leaves behind, next to the personal states in the store."""

    shared: Tree
    memory: Tree
    loss: float | None
    refused: list[int]
    bytes_down: int
    bytes_up: int


def play_round(
    setup: Setup, shared: Tree, memory: Tree, store: PersonalStore, cohort: Sequence[int], rnd: Round, observe: Observer
) -> Played:
    """`rnd` is as the method planned it; `observe` sees each client as its local update leaves it."""
    method, task, each_client = setup.method, setup.task, setup.engine.each_client
    if not cohort:
        return Played(shared, memory, None, [], 0, 0)
    sizes = torch.as_tensor(setup.federation.sizes()[cohort], dtype=torch.float64)
    weights = method.weights(sizes, rnd).tolist()
    personal = (store[client] for client in cohort)
    data = (setup.train_data(client, rnd.index) for client in cohort)

    total, bytes_up = setup.aggregate.start(), 0
    updated: dict[int, Tree] = {}
    refused: list[int] = []
    replies = each_client(lambda mine, examples: setup.local_update(shared, mine, examples, rnd), personal, data)
    for client, weight, (message, mine) in zip(cohort, weights, replies, strict=True):
        bytes_up += num_bytes(message)
        if not (is_finite(message) and is_finite(mine)):
            refused.append(client)
            continue
        total.add(weight, message)
        updated[client] = mine
        observe(client, method.local_shared(shared, message), mine)
    if not updated:
        raise DivergedError(f"round {rnd.index}: no client of the cohort sent finite numbers; lower the method's rates")

    update = total.result()
    after, memory = method.server_update(task, shared, memory, update, rnd)
    if not is_finite(after):
        raise DivergedError(f"round {rnd.index}: the shared model left the finite numbers; lower the method's rates")
    for client, mine in zip(
        updated, each_client(partial(method.receive, task, after, rnd=rnd), updated.values()), strict=True
    ):
        store[client] = mine
    loss = float(update["loss"]) if "loss" in update else None
    return Played(after, memory, loss, refused, num_bytes(shared) * len(cohort), bytes_up)
