"""Which engine does the work when the recipe leaves it open, and why."""

import numpy as np

from coterie.clients.engine import Engine
from coterie.clients.fused import Fused
from coterie.clients.loop import Loop
from coterie.clients.setup import Setup
from coterie.clients.vmap import Vmap
from coterie.core.method import Round

ALONE = 50e6
"""Operations of a local step above which one client keeps the machine busy by itself (docs/engines.md)."""


def choose(setup: Setup, memory: float) -> tuple[Engine, str]:
    """(engine, reason)"""
    fused, vmap = Fused(memory), Vmap(memory)
    if not fused.unfit(setup):
        return fused, "the body stays fixed during a round"
    if reason := vmap.unfit(setup):
        return Loop(), reason
    if setup.task.has_convolutions and setup.federation.x.device.type == "cpu":
        return Loop(), "convolutions of many clients at once are slow on a CPU"
    operations = _local_step(setup)
    if operations > ALONE:
        return Loop(), f"a local step of {operations / 1e6:,.0f} MFLOP keeps the machine busy with one client"
    return vmap, f"a local step of {operations / 1e6:,.2f} MFLOP is too small for one client at a time"


def _local_step(setup: Setup) -> float:
    """Operations of one local step of a client of median size."""
    federation, method = setup.federation, setup.method
    size = int(np.median(federation.sizes()[federation.existing]))
    rnd = method.plan(Round(1, len(federation.existing), federation.num_examples, 1, setup.seed))
    each = setup.task.flops(setup.task.num_outputs)
    passes = method.passes(size, rnd)
    return passes.batch * (each.body_forward + each.body_backward + each.head_step)
