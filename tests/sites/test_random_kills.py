"""Server and sites are killed at random moments, all at once, and end with the bits of an undisturbed run."""

import os
import random
import signal
import sys
import time
from collections.abc import Callable

import pytest
import torch

import coterie
import reference as ref
from sites.direct import Direct, deployed, simulated
from sites.test_equality import assert_equal, recipe, states


def forked(work: Callable[[], object], seconds: float | None = None) -> int:
    """Do work in a child process, which is killed after some time. Returns its exit code, or minus the signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + (seconds or 200)
    while not (there := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            there = os.waitpid(child, 0)
            break
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(there[1])


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_everything_is_killed_at_random_moments(seed, tmp_path):
    """All that the server and the sites know afterwards is on their disks."""
    draw, federation = random.Random(seed), ref.federation((5, 3, 8))
    settings = recipe(("pflego", "scafflix", "fedpac")[seed % 3], rounds=6)
    out = tmp_path / "run"

    def play() -> None:
        deployed(settings, Direct(federation, tmp_path / "sites"), out, resume=(out / "recipe.toml").exists())

    started, codes = time.monotonic(), []
    assert forked(lambda: deployed(settings, Direct(federation, tmp_path / "calm"))) == 0
    whole = time.monotonic() - started
    for _ in range(6):
        codes.append(forked(play, draw.uniform(0.05, 0.9) * whole))
        assert codes[-1] in (0, -signal.SIGKILL)
    assert forked(play) == 0
    assert -signal.SIGKILL in codes
    found, expected = coterie.load(out), simulated(settings, federation)
    assert_equal(found.shared, expected.shared, "shared")
    kept = states(Direct(federation, tmp_path / "sites"))
    for name in federation.ids:
        assert_equal(kept[name], expected.personal(name), name)
    assert [record.cohort for record in found.history] == [record.cohort for record in expected.history]
    assert [record.train_loss for record in found.history] == [record.train_loss for record in expected.history]
