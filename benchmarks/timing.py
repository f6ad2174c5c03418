"""Measurement of time and memory. Variants take turns, so that other load on the machine affects all of them alike."""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from coterie.data.federation import Federation
from coterie.lab.endless import endless
from coterie.prepare import prepare
from coterie.recipe import Recipe

Work = Callable[[], float]
"""A piece of work. It returns the seconds that it took."""
Seconds = dict[str, list[float]]
"""Measured seconds, by variant."""

TURN = 0.2
"""Shortest turn in seconds. Work that takes less time is repeated within its turn."""


def interleave(variants: Mapping[str, Work], repeats: int) -> Seconds:
    """Run each variant once to warm up, then `repeats` turns of each, alternating."""
    columns = (MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    seconds: Seconds = {name: [] for name in variants}
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=(repeats + 1) * len(variants))
        for turn in range(repeats + 1):
            for name, work in variants.items():
                bar.update(task, description=name)
                if turn == 0:
                    work()
                else:
                    seconds[name] += _turn(work)
                bar.advance(task)
    return seconds


def _turn(work: Work) -> list[float]:
    seconds = [work()]
    while sum(seconds) < TURN:
        seconds.append(work())
    return seconds


def timed(function: Callable[[], object]) -> Work:
    """Turn a function into a piece of work."""

    def work() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return work


def scaled(work: Work, factor: float) -> Work:
    """Time a part of the work and multiply the seconds by a factor."""
    return lambda: factor * work()


def rounds(federation: Federation, engine: str, clients_per_round: int, **sections: dict[str, Any]) -> Work:
    """Return work that plays the next round of a run. `sections` are [method] and [model] of the recipe."""
    game = prepare(timing_recipe(engine, clients_per_round, **sections), federation).rounds.play()
    return lambda: next(game).cost.seconds


def timing_recipe(engine: str, clients_per_round: int, **sections: dict[str, Any]) -> Recipe:
    """Return a recipe that never evaluates."""
    run = {"clients_per_round": clients_per_round, "checkpoint_every": 1}
    return endless(Recipe.parse({"run": run, "engine": {"kind": engine}, **sections}))


class Child:
    """A process that does a piece of work whenever it is called, and that knows its peak memory.

    It runs `target(done, *arguments)`, and `target` calls `done(seconds)` after each piece.
    """

    # A process that is forked and then executes another program inherits the peak of its parent in ru_maxrss. A child
    # of the fork server does not, as the fork server never grows.
    _context = multiprocessing.get_context("forkserver")

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.peak = 0
        """Peak memory so far, in bytes."""
        self._pipe, self._theirs = self._context.Pipe()
        self._process = self._context.Process(target=_serve, args=(self._theirs, target, arguments), daemon=True)

    def __enter__(self) -> "Child":
        self._process.start()
        self._theirs.close()
        return self

    def __call__(self) -> float:
        try:
            self._pipe.send(None)
            seconds, self.peak = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            self._process.join()
            raise ChildProcessError(f"the process to time ended with code {self._process.exitcode}") from None
        return float(seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, target: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    def done(seconds: float) -> None:
        pipe.send((seconds, _peak_memory()))
        pipe.recv()

    with suppress(EOFError, KeyboardInterrupt):  # the other end was closed, or the program is being stopped
        pipe.recv()
        target(done, *arguments)


def _peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
