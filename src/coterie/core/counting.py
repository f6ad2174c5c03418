"""Counters of operations and bytes, which count while code runs."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten: Any = torch.ops.aten
FORMULAS: dict[Any, Any] = {**flop_registry, aten.baddbmm_: flop_registry[aten.baddbmm]}
"""Number of operations by function. PyTorch's table lacks products that are added in place."""

P = ParamSpec("P")
T = TypeVar("T")


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that sees each operation. Nothing in it is compiled, so it need not load PyTorch's compiler (1 s)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class CountFlops(_Counter):
    """Context that counts floating-point operations of matrix products and convolutions, by PyTorch's own formulas.

    torch.utils.flop_counter.FlopCounterMode would hook into modules, which fails under torch.func.

    Args:
        executed: count what is really executed. By default operations are counted as methods are written, and
            shortcuts that give the same result with fewer operations are not taken.
    """

    innermost: ClassVar["CountFlops | None"] = None
    """The counter that is active now."""

    def __init__(self, executed: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0
        self.executed = executed

    def __enter__(self) -> Self:
        self._around, CountFlops.innermost = CountFlops.innermost, self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        CountFlops.innermost = self._around
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if formula := FORMULAS.get(func._overloadpacket):
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


def counts_declared_work() -> bool:
    """Return whether operations are being counted as methods are written, without shortcuts."""
    counter = CountFlops.innermost
    return counter is not None and not counter.executed


def alike(work: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function whose calls all cost the same.

    An active CountFlops measures only the first call and adds its cost for the others, which then run several times as
    fast.
    """
    each: int | None = None

    @wraps(work)
    def counted_once(*args: P.args, **kwargs: P.kwargs) -> T:
        nonlocal each
        counter = CountFlops.innermost
        if counter is None:
            return work(*args, **kwargs)
        if each is None:
            before = counter.total
            result = work(*args, **kwargs)
            each = counter.total - before
            return result
        counter.__exit__(None, None, None)
        try:
            return work(*args, **kwargs)
        finally:
            counter.__enter__()
            counter.total += each

    return counted_once


class CountBytes(_Counter):
    """Context that counts the bytes of new results of operations. A view of existing memory is free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            made = result if isinstance(result, tuple | list) else [result]
            self.total += sum(each.numel() * each.element_size() for each in made if isinstance(each, Tensor))
        return result
