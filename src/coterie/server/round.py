"""The server's side of one round, from top to bottom."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coterie.clients.clients import NOT_FINITE, Clients, Counts
from coterie.core.answers import exchanged, notes_of, weights_of
from coterie.core.method import Method, Receives, Round, Task, Tree, Update
from coterie.core.tree import is_finite, like, num_bytes
from coterie.core.untouched import INITIAL, SHARED, untouched
from coterie.errors import DivergedError, UserError
from coterie.measure.cost import Cost


@dataclass(frozen=True)
class Played:
    """The result of a round on the server's side."""

    shared: Tree
    memory: Tree
    loss: float | None
    """Mean training loss of the cohort, if the method reports it."""
    refused: dict[int, str]
    """Clients whose replies do not fit or are not finite, with the reason."""
    notes: dict[str, float | str]
    """What the method has to say about the round."""
    scores: Counts
    """Counts of right answers of each client right after its local update, if they were asked for."""
    cost: Cost
    digests: dict[int, str] = field(default_factory=dict)
    """sha256 of each reply that counts, if replies came as messages."""


def play_round(
    method: Method,
    task: Task,
    clients: Clients,
    shared: Tree,
    memory: Tree,
    cohort: Sequence[int],
    rnd: Round,
    scored: bool = False,
) -> Played:
    """Play one round. Exactly one `clients.keep` follows each `clients.update`, or none if the round diverges.

    Args:
        method: the method.
        task: the model and its loss.
        clients: all clients, as the server reaches them.
        shared: the shared model.
        memory: what the server keeps between rounds.
        cohort: the clients that take part and answer.
        rnd: the round, as `method.plan` has announced it.
        scored: whether clients are scored right after their local updates.
    """
    if not cohort:
        return Played(shared, memory, None, {}, {}, {}, Cost())
    start = time.perf_counter()
    weights = weights_of(method, torch.as_tensor(clients.sizes()[list(cohort)], dtype=torch.float64), rnd)

    replies = clients.update(shared, cohort, weights, rnd, scored)
    if replies.update is None:
        first, why = next(iter(replies.refused.items()))
        advice = f"correct what {type(method).__name__}.local_update returns"
        if all(each.endswith(NOT_FINITE) for each in replies.refused.values()):
            advice = "lower the learning rates"
        raise DivergedError(
            f"round {rnd.index}: no reply of the cohort can be used. Client {clients.ids[first]!r}: {why}; {advice}"
        )

    after, memory = _server_update(method, task, shared, memory, replies.update, rnd)
    if not is_finite(after):
        raise DivergedError(f"round {rnd.index}: the shared model has NaN or infinite values; lower the learning rates")
    if not is_finite(memory):
        raise DivergedError(
            f"round {rnd.index}: the memory of the server's optimizer has NaN or infinite values, which would freeze "
            "weights for good; look for a client with very large inputs, or lower the learning rates"
        )
    after = like(shared, after)  # arithmetic may change strides, and then a resumed run would round differently

    letters = exchanged(method, replies.letters, rnd)
    if not is_finite(*letters.values()):
        raise DivergedError(
            f"round {rnd.index}: a letter to a client has NaN or infinite values; lower the learning rates"
        )

    clients.keep(after, letters, rnd)

    seconds = time.perf_counter() - start - replies.scoring_seconds
    down = num_bytes(shared) * len(cohort) + sum(map(num_bytes, letters.values()))
    if isinstance(method, Receives) and len(cohort) < rnd.num_clients:  # otherwise the next round sends it
        down += num_bytes(after) * len(replies.answered)
    loss = float(replies.update.mean("loss")) if "loss" in replies.update.numbers else None
    notes = notes_of(method, replies.update, rnd)
    cost = replies.cost + Cost(bytes_down=down, seconds=seconds)
    return Played(after, memory, loss, replies.refused, notes, replies.scores, cost, replies.digests)


def _server_update(
    method: Method, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round
) -> tuple[Tree, Tree]:
    """Call the method's function, and check what it returns. Nothing is broadcast or completed."""
    name = f"{type(method).__name__}.server_update"
    try:
        with untouched(name, {SHARED: shared, INITIAL: task.initial}, UserError):
            after, memory = method.server_update(task, shared, memory, update, rnd)
        forms = {key: (tuple(value.shape), value.dtype) for key, value in after.items()}
        kept = {key: value for key, value in memory.items() if not isinstance(value, Tensor)}
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{name} failed in round {rnd.index}, or did not return two dicts of tensors (shared, memory): "
            f"{type(error).__name__}: {error}"
        ) from error
    for key in [*shared, *(forms.keys() - shared.keys())]:
        own, got = (tuple(shared[key].shape), shared[key].dtype) if key in shared else None, forms.get(key)
        if own != got:
            raise UserError(
                f"{name} returned {key!r} as {_told(got)} instead of {_told(own)} in round {rnd.index}; the shared "
                "model must keep its names, shapes and types"
            )
    if kept:
        raise UserError(f"{name} returned {next(iter(kept))!r} in the memory, which is not a tensor")
    return after, memory


def _told(form: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "nothing" if form is None else f"{form[1]} with shape {form[0]}"
