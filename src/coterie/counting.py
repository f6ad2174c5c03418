"""Counting operations and bytes while they happen."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class CountFlops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, `total` grows by what PyTorch's own formulas give for each matrix product and convolution.

    (torch.utils.flop_counter.FlopCounterMode hooks into modules, which fails under torch.func.)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


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
