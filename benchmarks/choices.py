"""J: the choice of `auto` between the engines loop and vmap, for clients of all sizes.

FedAvg with one local epoch and a network with 100 hidden units, with clients of 5 to 1,000 examples, 20 to 800
features, and batches from 4 examples to all. All clients take part in a round.
"""

import itertools
import statistics
from typing import Any

from benchmarks.result import Figure, Result
from benchmarks.timing import interleave, rounds, timing_recipe
from benchmarks.user_loops import Case
from coterie.prepare import prepare
from coterie.registry import name_of

EXAMPLES, FEATURES, BATCHES = (5, 20, 100, 300, 1000), (20, 100, 800), (4, 20, 0)
CLIENTS = 40
MODEL = {"name": "mlp", "hidden": [100]}


def cases() -> dict[str, Case]:
    """Return all sizes. Batches that hold all examples of a client are listed once."""
    found = {}
    for examples, features, batch in itertools.product(EXAMPLES, FEATURES, BATCHES):
        if batch < examples:
            method: dict[str, Any] = {"name": "fedavg", "tau": "1 epoch", "batch_size": batch}
            name = f"{examples} examples, {features} features, batch {batch or 'full'}"
            found[name] = Case(CLIENTS, examples, MODEL, method, (features,))
    return found


def measure(repeats: int) -> Result:
    """Time both engines in all cases, and compare the chosen one with the faster one."""
    variants, chosen = {}, {}
    for name, case in cases().items():
        sections, data = {"method": case.method, "model": case.model}, case.federation()
        chosen[name] = name_of("engine", prepare(timing_recipe("auto", CLIENTS, **sections), data).clients.engine)
        for engine in ("loop", "vmap"):
            variants[f"{name}, {engine}"] = rounds(data, engine, CLIENTS, **sections)
    seconds = interleave(variants, repeats)
    took = {name: statistics.median(each) for name, each in seconds.items()}
    excess = {
        name: took[f"{name}, {engine}"] / min(took[f"{name}, loop"], took[f"{name}, vmap"])
        for name, engine in chosen.items()
    }
    worst = max(excess, key=excess.__getitem__)
    return Result(
        f"J: one round with the engine that auto chooses over one with the faster engine, {CLIENTS} clients",
        seconds,
        [
            Figure("worst choice", excess[worst], at_most=1.3),
            *(Figure(f"{name}: {chosen[name]}", value) for name, value in excess.items()),
        ],
        [f"The worst choice is that for {worst}."],
    )
