"""A: rounds of the size of the MNIST experiments in the PFLEGO paper, compared with their matrix products alone.

There are 100 clients with 600 examples of 784 features, a body of 200 units and K classes per client, with r = 20 and
tau = 50. Data are random, as time does not depend on their values. A round cannot be faster than its matrix products,
which are timed alone, alternating with the rounds. PFLEGO has two products of the body: features, and the gradient of
the weights. All work of the heads counts as overhead. FedAvg has five products in each of the 50 steps of the 20
clients. A ratio of 1 means that a round takes no longer than its products. Scoring evaluates all clients as they are,
each on its own 100 test examples.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import interleave, rounds, scaled, timed, timing_recipe
from coterie.clients import work
from coterie.clients.engine import Call
from coterie.core.counting import CountFlops
from coterie.core.method import Round
from coterie.data.federation import Federation
from coterie.measure.evaluate import Scores
from coterie.prepare import prepare

CLIENTS, EXAMPLES, TESTS, FEATURES, HIDDEN = 100, 600, 100, 784, 200
COHORT, TAU = 20, 50


def measure(repeats: int) -> Result:
    """Time rounds of both methods, their products, and scoring."""
    two, ten = federation(2), federation(10)
    pflego, fedavg = {"name": "pflego", "tau": TAU}, {"name": "fedavg", "tau": TAU}
    seconds = interleave(
        {
            "PFLEGO, its products": timed(body_products(COHORT * EXAMPLES)),
            "PFLEGO, K = 2, fused": rounds(two, "fused", COHORT, method=pflego),
            "PFLEGO, K = 10, fused": rounds(ten, "fused", COHORT, method=pflego),
            "PFLEGO, K = 2, loop": rounds(two, "loop", COHORT, method=pflego),
            "FedAvg, its products": scaled(timed(all_products(EXAMPLES, 2, TAU)), COHORT),
            "FedAvg, K = 2, auto": rounds(two, "auto", COHORT, method=fedavg),
            "scoring all clients": timed(scoring(two, pflego)),
        },
        repeats,
    )
    over = partial(ratio, seconds)
    return Result(
        f"A: one round, {CLIENTS} clients x {EXAMPLES} examples, {FEATURES}-{HIDDEN}-K, r = {COHORT}, tau = {TAU}",
        seconds,
        [
            Figure("PFLEGO, K = 2 / its products", over("PFLEGO, K = 2, fused", "PFLEGO, its products"), at_most=1.5),
            Figure("PFLEGO, K = 10 / its products", over("PFLEGO, K = 10, fused", "PFLEGO, its products"), at_most=2),
            Figure("FedAvg / its products", over("FedAvg, K = 2, auto", "FedAvg, its products"), at_most=0.8),
            Figure("FedAvg, operations executed / declared", executed(two, fedavg)),
            Figure("FedAvg / PFLEGO, K = 2", over("FedAvg, K = 2, auto", "PFLEGO, K = 2, fused")),
            Figure("scoring / PFLEGO, K = 2", over("scoring all clients", "PFLEGO, K = 2, fused"), at_most=1),
            Figure("PFLEGO, loop / fused", over("PFLEGO, K = 2, loop", "PFLEGO, K = 2, fused")),
        ],
        [f"The products of FedAvg are timed for the {TAU} steps of one client, and multiplied by {COHORT}."],
    )


def federation(classes: int, clients: int = CLIENTS) -> Federation:
    """Return a federation of random examples in which every client has all classes."""
    rng = np.random.default_rng(0)
    y = np.arange(EXAMPLES) % classes

    def images(count: int) -> np.ndarray:
        return rng.random((count, FEATURES), dtype=np.float32)

    return Federation.from_arrays({str(i): (images(EXAMPLES), y, images(TESTS), y[:TESTS]) for i in range(clients)})


def executed(data: Federation, method: dict[str, Any]) -> float:
    """Return the operations that a client's local update executes over those of the method as it is written."""
    run = prepare(timing_recipe("loop", COHORT, method=method), data)
    load = run.clients.load
    given = load.work.task, run.rounds.shared, {}, load.data(0, "train", 1)
    rnd = load.work.method.plan(Round(1, CLIENTS, data.num_examples, COHORT, 0))
    counts = []
    for really in (True, False):
        with CountFlops(executed=really) as counted:
            load.work.method.local_update(*given, rnd)
        counts.append(counted.total)
    return counts[0] / counts[1]


def scoring(data: Federation, method: dict[str, Any]) -> Callable[[], Scores]:
    """Return a function that scores all clients. Each was visited once, so its head is in the store."""
    run = prepare(timing_recipe("auto", len(data.ids), method=method), data)
    next(run.rounds.play())
    clients = data.existing.tolist()

    def score() -> Scores:
        personal = [run.clients.personal(i) for i in clients]
        call = Call(work.score, run.rounds.shared, clients, (personal,), ("test",))
        return Scores.of(run.clients.engine.counts(run.clients.load, call))

    return score


def body_products(examples: int) -> Callable[[], None]:
    """Return a function with the products of the body: forward, and the gradient of the weights."""
    x, weight, gradient = torch.rand(examples, FEATURES), torch.rand(HIDDEN, FEATURES), torch.rand(examples, HIDDEN)
    features, weight_gradient = torch.empty_like(gradient), torch.empty_like(weight)

    def multiply() -> None:
        torch.mm(x, weight.T, out=features)
        torch.mm(gradient.T, x, out=weight_gradient)

    return multiply


def all_products(examples: int, classes: int, steps: int) -> Callable[[], None]:
    """Return a function with the products of `steps` steps. The head also needs the gradient of its inputs."""
    body = body_products(examples)
    features, weight, gradient = (
        torch.rand(examples, HIDDEN),
        torch.rand(classes, HIDDEN),
        torch.rand(examples, classes),
    )
    outputs = torch.empty_like(gradient)
    weight_gradient, feature_gradient = torch.empty_like(weight), torch.empty_like(features)

    def multiply() -> None:
        for _ in range(steps):
            body()
            torch.mm(features, weight.T, out=outputs)
            torch.mm(gradient.T, features, out=weight_gradient)
            torch.mm(gradient, weight, out=feature_gradient)

    return multiply
