"""What training costs the clients, counted so that nothing but the seconds depends on the engine or the machine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from coterie.engine.setup import Setup
from coterie.method import Round


@dataclass(frozen=True)
class Cost:
    """Sums over the clients of a round, or of a run. Evaluation is not counted."""

    bytes_down: int = 0
    bytes_up: int = 0
    flops: int = 0
    body_forwards: int = 0
    body_backwards: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def local_work(setup: Setup, cohort: Sequence[int], rnd: Round) -> Cost:
    """The cohort's computation."""
    total, sizes = Cost(), setup.federation.sizes()
    for client in cohort:
        passes = setup.method.passes(int(sizes[client]), rnd)
        each = setup.task.flops(setup.num_outputs(client))
        flops = passes.batch * (
            passes.body_forwards * each.body_forward
            + passes.body_backwards * each.body_backward
            + passes.head_steps * each.head_step
        )
        total += Cost(flops=round(flops), body_forwards=passes.body_forwards, body_backwards=passes.body_backwards)
    return total
