"""The cost of training for the clients. Only the seconds depend on the engine and the machine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from coterie.core.answers import passes_of
from coterie.core.method import Method, Round
from coterie.measure.probe import Counted, Probe


@dataclass(frozen=True)
class Cost:
    """Sums over the clients of a round, or of a run. Evaluation counts only in `eval_seconds`."""

    bytes_down: int = 0
    bytes_up: int = 0
    flops: int = 0
    body_forwards: int = 0
    body_backwards: int = 0
    seconds: float = 0.0
    eval_seconds: float = 0.0
    """Seconds that evaluations took."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> dict[str, Any]:
        """Return the cost as in rounds.jsonl and summary.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Cost":
        """Read a cost. Missing numbers are 0, and unknown keys are ignored."""
        return cls(**{field.name: tree[field.name] for field in fields(cls) if field.name in tree})


def local_work(method: Method, probe: Probe, clients: Sequence[tuple[int, int]], rnd: Round) -> Cost:
    """Return the cost of the cohort's local updates.

    Args:
        method: the method, which declares its cost, or else has it counted.
        probe: measurements of the task.
        clients: number of examples and number of outputs of each client of the cohort.
        rnd: the round.
    """
    total = Cost()
    for (size, outputs), number in Counter(clients).items():
        each = _declared(method, probe, size, outputs, rnd) or probe.counted(method, size, outputs, rnd)
        total += Cost(
            flops=number * each.flops,
            body_forwards=number * each.body_forwards,
            body_backwards=number * each.body_backwards,
        )
    return total


def _declared(method: Method, probe: Probe, size: int, outputs: int, rnd: Round) -> Counted | None:
    passes = passes_of(method, size, rnd)
    if passes is None:
        return None
    each = probe.flops(outputs)
    operations = passes.batch * (
        passes.body_forwards * each.body_forward
        + passes.body_backwards * each.body_backward
        + passes.head_steps * each.head_step
        + passes.frozen_head * each.frozen_head
        + passes.head_forwards * each.head_forward
        + passes.feature_products * each.feature_product
    )
    operations += size * passes.whole_forwards * (each.body_forward + each.head_forward)
    operations += size * passes.whole_features * each.body_forward
    if passes.hessian_products:
        operations += passes.batch * passes.hessian_products * probe.hessian_flops(outputs)
    return Counted(
        round(operations),
        passes.body_forwards + passes.whole_forwards + passes.whole_features + passes.hessian_products,
        passes.body_backwards + 2 * passes.hessian_products,
    )
