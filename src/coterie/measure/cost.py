"""The cost of training for the clients. Only the seconds depend on the engine and on the machine."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from coterie.clients.setup import Setup
    from coterie.core.method import Round


@dataclass(frozen=True)
class Cost:
    """Cost of a round or of a run, summed over its clients. Evaluation is not counted."""

    bytes_down: int = 0
    """Bytes sent from the server to clients."""
    bytes_up: int = 0
    """Bytes sent from clients to the server."""
    flops: int = 0
    """Floating-point operations of the clients."""
    body_forwards: int = 0
    """Forward passes of a batch through the body."""
    body_backwards: int = 0
    """Backward passes of a batch through the body."""
    seconds: float = 0.0
    """Wall-clock time."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> dict[str, Any]:
        """Return the cost by name, as in summary.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read a cost. Missing entries are zero and unknown ones are ignored."""
        return cls(**{field.name: tree[field.name] for field in fields(cls) if field.name in tree})


def local_work(setup: "Setup", cohort: Sequence[int], rnd: "Round") -> Cost:
    """Compute what the local work of a cohort costs, without communication and time."""
    flops, forwards, backwards = 0, 0, 0
    sizes = setup.federation.sizes()[list(cohort)].tolist()
    for (size, outputs), clients in Counter(zip(sizes, map(setup.num_outputs, cohort), strict=True)).items():
        passes, each = setup.method.passes(size, rnd), setup.task.flops(outputs)
        operations = passes.batch * (
            passes.body_forwards * each.body_forward
            + passes.body_backwards * each.body_backward
            + passes.head_steps * each.head_step
            + passes.frozen_head * each.frozen_head
            + passes.head_forwards * each.head_forward
            + passes.feature_products * each.feature_product
        )
        operations += size * passes.whole_forwards * (each.body_forward + each.head_forward)
        if passes.hessian_products:
            operations += passes.batch * passes.hessian_products * setup.task.hessian_flops(outputs)
        flops += clients * round(operations)
        forwards += clients * (passes.body_forwards + passes.whole_forwards + passes.hessian_products)
        backwards += clients * (passes.body_backwards + 2 * passes.hessian_products)
    return Cost(flops=flops, body_forwards=forwards, body_backwards=backwards)
