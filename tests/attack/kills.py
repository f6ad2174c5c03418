"""Campaign `kills`: SIGKILL at random instants, also while resuming. All files must equal those of an unbroken run."""

from pathlib import Path
from random import Random

from attack.campaign import Campaign
from attack.folders import METHODS, compare, continued, finish, settings, unbroken, warm_up


def prepare() -> int:
    """Warm up. There is no end of attempts."""
    warm_up()
    return 1 << 31


def attempt(seed: int, folder: Path) -> str:
    """Kill a run several times, let it end, and compare. Some runs are lengthened in between."""
    rng = Random(seed)
    method, every = METHODS[seed % len(METHODS)], rng.choice((1, 2, 3))
    phases: tuple[int, ...] = rng.choice(((5,), (5,), (3, 6)))
    expected, seconds = unbroken(method, phases, every)
    out, start = folder / expected.name, settings(method, phases[0], every)
    kills = 0
    for rounds in phases:
        for _ in range(rng.randrange(1, 6)):
            ended = continued(out, start, rounds, kill_after=rng.uniform(0.02, 1.1) * seconds)
            kills += ended.code == -9
        finish(out, start, rounds)
    compare(out, expected)
    return f"{method}, rounds {phases}, checkpoint_every {every}: {kills} kills"


CAMPAIGN = Campaign(
    "kills",
    "a run is killed at random instants and resumed: every file equals that of an unbroken run",
    attempt,
    prepare,
    200,
)
