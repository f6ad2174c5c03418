"""One round, from top to bottom."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from coterie.clients import client
from coterie.clients.engine import Engine
from coterie.clients.setup import Setup
from coterie.core.method import Method, Round, Tree
from coterie.core.tree import is_finite, num_bytes
from coterie.errors import DivergedError
from coterie.measure.cost import Cost, local_work
from coterie.storage.store import PersonalStore


@dataclass(frozen=True)
class Played:
    """What a round leaves behind, next to the personal states in the store."""

    shared: Tree
    memory: Tree
    loss: float | None
    refused: list[int]
    remarks: list[str]
    scores: dict[int, Tree]
    cost: Cost


def play_round(
    engine: Engine,
    setup: Setup,
    shared: Tree,
    memory: Tree,
    store: PersonalStore,
    cohort: Sequence[int],
    rnd: Round,
    scored: bool = False,
) -> Played:
    """`rnd` is as the method planned it; `scored` asks for the clients' scores right after their local updates."""
    method = setup.method
    if not cohort:
        return Played(shared, memory, None, [], [], {}, Cost())
    start = time.perf_counter()
    sizes = torch.as_tensor(setup.federation.sizes()[list(cohort)], dtype=torch.float64)
    weights, personal = method.weights(sizes, rnd), [store[i] for i in cohort]

    replies = engine.local_updates(setup, shared, cohort, personal, weights, rnd, scored)
    if not replies.personal:
        raise DivergedError(f"round {rnd.index}: no client of the cohort sent finite numbers; lower the method's rates")

    update = replies.total.result()
    after, memory = method.server_update(setup.task, shared, memory, update, rnd)
    if not is_finite(after):
        raise DivergedError(f"round {rnd.index}: the shared model left the finite numbers; lower the method's rates")

    kept = replies.personal
    if type(method).receive is not Method.receive:
        work = partial(client.receive, rnd=rnd)
        kept = engine.answers(setup, work, after, list(kept), list(kept.values()))
    for i, mine in kept.items():
        store[i] = mine
    loss = float(update["loss"] / update["weight"]) if "loss" in update else None
    seconds = time.perf_counter() - start - replies.scoring_seconds
    down = num_bytes(shared) * len(cohort)
    if type(method).receive is not Method.receive and len(cohort) < rnd.num_clients:
        down += num_bytes(after) * len(kept)  # who takes part in the next round as well is sent it then anyway
    cost = local_work(setup, cohort, rnd) + Cost(down, replies.bytes_up, setup.settling(cohort), seconds=seconds)
    remarks = method.remarks(update, rnd)
    return Played(after, memory, loss, sorted(replies.refused), remarks, replies.scores, cost)
