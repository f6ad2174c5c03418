"""A campaign is a way to attack Coterie. Each of its attempts is made from a seed and is held off or escapes."""

import json
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PATIENCE = 120.0
"""Seconds after which an attempt counts as hanging."""
CHUNK = 100
"""Number of attempts that share a process. What one of them leaves behind ends with it."""


class Escape(AssertionError):
    """The attack went through: a wrong result, a traceback, or a message that does not help."""


class Outcome(NamedTuple):
    """One line of a results file."""

    campaign: str
    seed: int
    outcome: str
    """"held" or "escaped"."""
    what: str
    """What happened."""


@dataclass(frozen=True)
class Campaign:
    """A way to attack Coterie."""

    name: str
    about: str
    """What is attacked and what must hold, in one line."""
    attempt: Callable[[int, Path], str]
    """Function of a seed and an empty folder. It returns what happened, or raises Escape."""
    prepare: Callable[[], int]
    """Function that makes what all attempts share, before the first one. Returns the number of different attempts."""
    default: int
    """Number of attempts unless the user says otherwise."""


def attempted(campaign: Campaign, seed: int) -> Outcome:
    """Make one attempt in this process. Any exception but KeyboardInterrupt is an escape."""
    with tempfile.TemporaryDirectory(prefix=f"attack-{campaign.name}-") as folder:
        try:
            return Outcome(campaign.name, seed, "held", campaign.attempt(seed, Path(folder)))
        except Escape as escape:
            return Outcome(campaign.name, seed, "escaped", str(escape))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {str(error)[:300]} ({Path(place.filename).name}:{place.lineno})"
            return Outcome(campaign.name, seed, "escaped", what)


def outcomes(campaign: Campaign, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Make the attempts in child processes, so that a crash or a hang is an escape like any other."""
    left = list(seeds)
    while left:
        chunk, left = left[:CHUNK], left[CHUNK:]
        done = 0
        for outcome in _in_child(campaign, chunk):
            done += 1
            yield outcome
        left = chunk[done:] + left


def _in_child(campaign: Campaign, seeds: Sequence[int]) -> Iterator[Outcome]:
    """Make attempts in one child process, until it ends for any reason."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.setpgid(0, 0)  # so that a hanging attempt can be ended together with its own children
            for seed in seeds:
                os.write(write, (json.dumps(attempted(campaign, seed)) + "\n").encode())
        finally:
            os._exit(0)
    os.close(write)
    os.set_blocking(read, False)
    ended, hangs, done, text, last = False, False, 0, b"", time.monotonic()
    try:
        while not ended:
            ended = os.waitpid(child, os.WNOHANG)[0] != 0
            while content := _available(read):
                text += content
            *lines, text = text.split(b"\n")
            for line in lines:
                done, last = done + 1, time.monotonic()
                yield Outcome(*json.loads(line))
            if not ended and time.monotonic() - last > PATIENCE:
                hangs = True
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.005)
        if done < len(seeds):
            what = f"hangs for more than {PATIENCE:.0f} seconds" if hangs else "the process crashed"
            yield Outcome(campaign.name, seeds[done], "escaped", what)
    finally:
        os.close(read)
        if not ended:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _available(read: int) -> bytes:
    try:
        return os.read(read, 1 << 16)
    except BlockingIOError:
        return b""
