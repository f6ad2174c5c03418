"""Counting operations and bytes while they happen."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, ParamSpec, Self, TypeVar

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

P = ParamSpec("P")
T = TypeVar("T")


class CountFlops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, `total` grows by what PyTorch's own formulas give for each matrix product and convolution.

    (torch.utils.flop_counter.FlopCounterMode hooks into modules, which fails under torch.func.)
    """

    innermost: ClassVar["CountFlops | None"] = None
    """The one that counts now."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __enter__(self) -> Self:
        self._around, CountFlops.innermost = CountFlops.innermost, self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        CountFlops.innermost = self._around
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


def alike(work: Callable[P, T]) -> Callable[P, T]:
    """The same function, of which each call costs the same: a CountFlops around watches only the first, and knows the
    others. That makes them several times as fast."""
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


class CountBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, `total` grows by the size of whatever an operation makes anew; a view of what was there is free."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            made = result if isinstance(result, tuple | list) else [result]
            self.total += sum(each.numel() * each.element_size() for each in made if isinstance(each, Tensor))
        return result
