"""D: cost of a round as the population grows and the cohort does not.

There are 10^3 to 10^6 clients with r = 100. Each client has 20 of 100,000 shared examples, the network is 64-32-10, and
there are 5 local steps. Each population runs in its own process, so that its peak memory is its own. The processes take
turns. The seconds include everything from one round to the next: sampling the cohort and, with a run folder, the log
and the checkpoint. Timing starts after so many rounds that all of 1,000 clients were visited, while nearly all of a
million clients are still unvisited.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import Child, Seconds, interleave, timing_recipe
from coterie.data.federation import Federation
from coterie.data.ragged import Ragged
from coterie.measure.record import Record
from coterie.training import Training

WARM_UP = 50
"""Number of rounds before timing starts."""
POPULATIONS = (1_000, 10_000, 100_000, 1_000_000)
COHORT, EXAMPLES, FEATURES, HIDDEN, CLASSES, POOL = 100, 20, 64, 32, 10, 100_000
VARIANTS: dict[str, tuple[dict[str, Any], bool]] = {
    "FedAvg": ({"name": "fedavg", "tau": 5, "batch_size": 4}, False),
    "PFLEGO": ({"name": "pflego", "tau": 50}, False),
    "PFLEGO, run folder": ({"name": "pflego", "tau": 50}, True),
}


def measure(repeats: int) -> Result:
    """Time rounds of all populations, and measure peak memory."""
    seconds: Seconds = {}
    figures: list[Figure] = []
    smallest, *others = POPULATIONS
    for variant, (method, with_folder) in VARIANTS.items():
        names = {population: f"{variant}, {population:,}" for population in POPULATIONS}
        children = {}
        with ExitStack() as stack:
            for population, name in names.items():
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run" if with_folder else None
                children[name] = stack.enter_context(Child(play, population, method, folder, WARM_UP))
            seconds |= interleave(children, repeats)
        for each in others:
            value = ratio(seconds, names[each], names[smallest])
            figures.append(Figure(f"{names[each]} / {smallest:,}", value, at_most=1.2))
        peak = children[names[others[-1]]].peak / 1e9
        figures.append(Figure(f"{names[others[-1]]}, peak memory", peak, at_most=2, unit=" GB"))
    return Result(
        f"D: one round, {smallest:,} to {others[-1]:,} clients x {EXAMPLES} examples, r = {COHORT}",
        seconds,
        figures,
        [f"Timing starts after {WARM_UP} rounds. With a run folder, every round writes a checkpoint."],
    )


def play(
    done: Callable[[float], None], population: int, method: dict[str, Any], folder: Path | None, warm_up: int
) -> None:
    """Play rounds without end, and report the seconds of each after the warm-up."""
    recipe = timing_recipe("auto", COHORT, method=method, model={"name": "mlp", "hidden": [HIDDEN]})
    training = Training(recipe, federation(population), folder)
    start = time.perf_counter()

    def report(record: Record) -> None:
        nonlocal start
        if record.round > warm_up:
            done(time.perf_counter() - start)
        start = time.perf_counter()

    training.play(report)


def federation(population: int) -> Federation:
    """Return a federation in which client i has the examples 20 i, ..., 20 i + 19 of a pool, modulo its size."""
    rows = np.arange(population * EXAMPLES) % POOL
    starts = np.arange(population + 1)
    return Federation(
        ids=tuple(map(str, range(population))),
        labels=tuple(range(CLASSES)),
        x=torch.from_numpy(np.random.default_rng(0).random((POOL, FEATURES), dtype=np.float32)),
        y=torch.arange(POOL) % CLASSES,
        splits={"train": Ragged(rows, starts * EXAMPLES), "test": Ragged(rows[:0], starts * 0)},
        classes=Ragged(np.tile(np.arange(CLASSES), population), starts * CLASSES),
        is_new=np.zeros(population, dtype=np.bool_),
    )
