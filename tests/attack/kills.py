"""Campaign `kills`: SIGKILL at random instants, also while resuming. All files must equal those of an unbroken run."""

from pathlib import Path
from random import Random
from typing import NamedTuple

from attack.campaign import Campaign
from attack.folders import METHODS, compare, continued, finish, settings, unbroken, warm_up


def prepare() -> int:
    """Warm up. There is no end of attempts."""
    warm_up()
    return 1 << 31


class Plan(NamedTuple):
    """A run that is to be killed."""

    method: str
    phases: tuple[int, ...]
    """Numbers of rounds: the run is lengthened from one to the next."""
    every: int
    """Number of rounds between checkpoints."""


def plan(seed: int) -> Plan:
    """Return the run of an attempt."""
    rng = Random(seed)
    return Plan(METHODS[seed % len(METHODS)], rng.choice(((5,), (5,), (3, 6))), rng.choice((1, 2, 3)))


def expected(made: Plan) -> tuple[Path, float]:
    """Return the folder of the same run without kills, and the seconds it took."""
    return unbroken(made.method, made.phases, made.every)


def attempt(seed: int, folder: Path) -> str:
    """Kill a run several times, let it end, and compare. Some runs are lengthened in between."""
    rng = Random(-seed)
    method, phases, every = plan(seed)
    unharmed, seconds = expected(plan(seed))
    out, start = folder / unharmed.name, settings(method, phases[0], every)
    kills = 0
    for rounds in phases:
        for _ in range(rng.randrange(1, 6)):
            ended = continued(out, start, rounds, kill_after=rng.uniform(0.02, 1.1) * seconds)
            kills += ended.code == -9
        finish(out, start, rounds)
    compare(out, unharmed)
    return f"{method}, rounds {phases}, checkpoint_every {every}: {kills} kills"


CAMPAIGN = Campaign(
    "kills",
    "a run is killed at random instants and resumed: every file equals that of an unbroken run",
    attempt,
    prepare,
    200,
)
