"""I: rounds of FedAvg with the engine `loop` on one thread and on all threads.

The engine computes one client on each thread. With T threads a round cannot be more than T times as fast.
"""

from collections.abc import Callable

import torch

from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import Work, interleave, rounds
from benchmarks.user_loops import CASES

NAMES = ("MLP, 50 x 200, batch 10, 5 epochs", "cnn-cifar, 10 x 200, batch 32", "cnn-femnist, 10 x 200, batch 32")


def measure(repeats: int) -> Result:
    """Time rounds on one thread and on all threads."""
    threads = torch.get_num_threads()
    variants: dict[str, Work] = {}
    for name in NAMES:
        case = CASES[name]
        for number in (1, threads):
            work = rounds(case.federation(), "loop", case.clients, method=case.method, model=case.model)
            variants[f"{name}, threads = {number}"] = _on(number, threads, work)
    seconds = interleave(variants, repeats)
    figures = (
        [Figure(name, ratio(seconds, f"{name}, threads = 1", f"{name}, threads = {threads}")) for name in NAMES]
        if threads > 1
        else []
    )
    return Result(f"I: one round on 1 thread over one on {threads} threads", seconds, figures)


def _on(number: int, usual: int, work: Work) -> Callable[[], float]:
    def on_threads() -> float:
        torch.set_num_threads(number)
        try:
            return work()
        finally:
            torch.set_num_threads(usual)

    return on_threads
