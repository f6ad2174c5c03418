"""How time and memory are taken: variants in turn, so that a busy machine disturbs all alike."""

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
from coterie.recipe import Recipe
from coterie.training import prepare

Work = Callable[[], float]
"""A piece of work; it gives the seconds that it took."""
Seconds = dict[str, list[float]]

TURN = 0.2
"""A piece of work that takes fewer seconds is done several times when its turn comes."""


def interleave(variants: Mapping[str, Work], repeats: int) -> Seconds:
    """Each variant once to warm up, then so many turns each, round robin."""
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
    """A function as a piece of work."""

    def work() -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return work


def scaled(work: Work, factor: float) -> Work:
    """A part of the work that stands for all of it."""
    return lambda: factor * work()


def rounds(federation: Federation, engine: str, clients_per_round: int, **sections: dict[str, Any]) -> Work:
    """A run whose next round is the piece of work; `sections` are the recipe's [method] and [model]."""
    game = prepare(timing_recipe(engine, clients_per_round, **sections), federation).rounds.play()
    return lambda: next(game).cost.seconds


def timing_recipe(engine: str, clients_per_round: int, **sections: dict[str, Any]) -> Recipe:
    """A recipe that never evaluates."""
    run = {"clients_per_round": clients_per_round, "checkpoint_every": 1}
    return endless(Recipe.parse({"run": run, "engine": {"kind": engine}, **sections}))


class Child:
    """A process of its own, which does a piece of work whenever it is called, and whose peak memory is known.

    It runs `target(done, *arguments)`, and `target` calls `done(seconds)` after each piece.
    """

    # A process that is forked and then executes another program inherits its parent's peak in ru_maxrss; a child of
    # the fork server, which never grows, does not.
    _context = multiprocessing.get_context("forkserver")

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self.peak = 0
        """The most memory that it held so far, in bytes."""
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
            raise ChildProcessError(f"a process that was timed ended with code {self._process.exitcode}") from None
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

    with suppress(EOFError, KeyboardInterrupt):  # the other end was closed, or everything is being stopped
        pipe.recv()
        target(done, *arguments)


def _peak_memory() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
