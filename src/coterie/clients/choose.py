"""The engine that does the work if the recipe leaves it open, and why."""

import numpy as np

from coterie.clients.engine import Engine
from coterie.clients.fused import Fused
from coterie.clients.loop import Loop
from coterie.clients.vmap import Vmap
from coterie.clients.workload import Workload
from coterie.core.answers import passes_of, planned
from coterie.core.method import Round

ALONE = 50e6
"""Operations of a local step above which one client keeps the machine busy by itself (docs/performance.md)."""


def choose(load: Workload, memory: float) -> tuple[Engine, str]:
    """Choose an engine. Returns (engine, reason)."""
    fused, vmap = Fused(memory), Vmap(memory)
    if not fused.unfit(load):
        return fused, "the body stays fixed during a round"
    if reason := vmap.unfit(load):
        return Loop(), reason
    if load.work.task.chain is not None:
        return vmap, "dense layers are trained fastest for many clients at once (`coterie bench J`)"
    if load.work.probe.has_convolutions and load.federation.x.device.type == "cpu":
        return Loop(), "convolutions of many clients at once are slow on a CPU"
    operations, device = _local_step(load), load.federation.x.device.type
    measured = "" if device == "cpu" else f"; this threshold was measured on a CPU, so compare engines on {device}"
    if operations > ALONE:
        return Loop(), f"a local step of {operations / 1e6:,.0f} MFLOP keeps the machine busy with one client{measured}"
    return vmap, f"a local step of {operations / 1e6:,.2f} MFLOP is too small for one client at a time{measured}"


def _local_step(load: Workload) -> float:
    """Return the operations of one local step of a client of median size."""
    federation, method = load.federation, load.work.method
    size = int(np.median(federation.sizes()[federation.existing]))
    rnd = planned(method, Round(1, len(federation.existing), federation.num_examples, 1, load.work.seed))
    each = load.work.probe.flops(load.work.task.num_outputs)
    passes = passes_of(method, size, rnd)
    batch = min(getattr(method, "batch_size", 0), size) or size
    return (passes.batch if passes else batch) * (each.body_forward + each.body_backward + each.head_step)
