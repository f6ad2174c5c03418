"""B: many tiny clients, for which arithmetic takes only a small part of the time.

FedAvg has 1,000 clients per round with 20 examples of 64 features each, a 64-32-10 network, and 5 steps of batch size
4. The reference is the same arithmetic, written by hand for all clients at once: batched products, gradients derived on
paper, and batches drawn beforehand. It gives the same result as Coterie, which a test checks, and does nothing else.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from benchmarks.checks import share_of_checks
from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import interleave, rounds, scaled, timed, timing_recipe
from coterie.clients.workload import Workload
from coterie.core.steps import minibatch
from coterie.core.tree import Tree
from coterie.data.federation import Federation
from coterie.prepare import prepare

CLIENTS, EXAMPLES, FEATURES, HIDDEN, CLASSES = 1000, 20, 64, 32, 10
STEPS, BATCH, RATE = 5, 4, 0.05
PART = 50
"""Number of clients that the engine loop is timed with."""

METHOD = {"name": "fedavg", "tau": STEPS, "batch_size": BATCH, "eta": RATE}
MODEL = {"name": "mlp", "hidden": [HIDDEN]}


def measure(repeats: int) -> Result:
    """Time a round with two engines and by hand."""
    everyone = federation(CLIENTS)
    load = prepare(timing_recipe("loop", CLIENTS, method=METHOD, model=MODEL), everyone).clients.load
    work = HandBatched.first_round(load, STEPS, BATCH)
    shared = load.work.method.init_shared(load.work.task)
    seconds = interleave(
        {
            "loop": scaled(rounds(federation(PART), "loop", PART, method=METHOD, model=MODEL), CLIENTS / PART),
            "vmap": rounds(everyone, "vmap", CLIENTS, method=METHOD, model=MODEL),
            "by hand": timed(lambda: work.play(shared, RATE)),
        },
        repeats,
    )
    checks = share_of_checks(rounds(everyone, "vmap", CLIENTS, method=METHOD, model=MODEL), 3 * repeats)
    return Result(
        f"B: one round of FedAvg, {CLIENTS:,} clients x {EXAMPLES} examples, {FEATURES}-{HIDDEN}-{CLASSES}, "
        f"{STEPS} steps of batch size {BATCH}",
        seconds,
        [
            Figure("loop / vmap", ratio(seconds, "loop", "vmap"), at_least=40),
            Figure("vmap / by hand", ratio(seconds, "vmap", "by hand"), at_most=1.4),
            Figure("checks of replies / round", checks, at_most=0.01),
        ],
        [f"The engine loop is timed with {PART} clients, and the time is multiplied by {CLIENTS // PART}."],
    )


def federation(clients: int) -> Federation:
    """Return a federation of random examples."""
    rng = np.random.default_rng(0)
    x = rng.random((clients, EXAMPLES, FEATURES), dtype=np.float32)
    y = np.arange(EXAMPLES) % CLASSES
    return Federation.from_arrays({str(i): (x[i], y, x[i, :0], y[:0]) for i in range(clients)})


class HandBatched(NamedTuple):
    """FedAvg on a two-layer network by hand, with C clients, B examples, M features, H hidden units and K classes."""

    pool: Tensor  # (all examples, M)
    rows: list[Tensor]  # for each step: (C, B), which examples
    answers: list[Tensor]  # (C, B, K), one-hot
    weights: Tensor  # (C,), with sum one

    @classmethod
    def first_round(cls, load: Workload, steps: int, batch: int) -> "HandBatched":
        """Return the batches that all clients draw in round 1."""
        data = load.gather(range(len(load.federation.ids)), "train", 1)
        pool, numbers = data.x.flatten(0, 1), torch.arange(data.mask.numel()).view(*data.mask.shape, 1)
        named = data._replace(x=numbers)
        batches = [vmap(lambda mine, step=step: minibatch(mine, batch, step))(named) for step in range(steps)]
        sizes = data.mask.sum(1, dtype=data.x.dtype)
        one_hot = torch.eye(load.work.task.num_outputs, dtype=data.x.dtype)
        rows, answers = [each.x[..., 0] for each in batches], [one_hot[each.y] for each in batches]
        return cls(pool, rows, answers, sizes / sizes.sum())

    def play(self, shared: Tree, rate: float) -> Tree:
        """Return the shared model after the round."""
        C = len(self.weights)
        names = ("body.1.weight", "body.1.bias", "head.weight", "head.bias")
        V, c, W, b = (shared[name].repeat(C, *[1] * shared[name].ndim) for name in names)
        for rows, answers in zip(self.rows, self.answers, strict=True):
            x = self.pool.index_select(0, rows.flatten()).view(*rows.shape, -1)  # (C, B, M)
            features = torch.baddbmm(c[:, None], x, V.mT).relu_()  # (C, B, H)
            outputs = torch.baddbmm(b[:, None], features, W.mT)  # (C, B, K)
            g_outputs = (outputs.softmax(2) - answers).div_(x.shape[1])
            g_features = torch.bmm(g_outputs, W).mul_(features > 0)
            W.baddbmm_(g_outputs.mT, features, alpha=-rate)
            b.sub_(g_outputs.sum(1), alpha=rate)
            V.baddbmm_(g_features.mT, x, alpha=-rate)
            c.sub_(g_features.sum(1), alpha=rate)
        return {name: torch.tensordot(self.weights, each, 1) for name, each in zip(names, (V, c, W, b), strict=True)}
