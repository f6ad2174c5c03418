"""Host-device crossings, counted without an accelerator.

A CPU tensor counts as one on the accelerator, with the device `cpu:0`, unless it was made on the host: from a list or
from NumPy, by `cpu()`, or from such tensors only. So a run on the CPU takes every decision as on an accelerator.
"""

from collections import Counter
from traceback import extract_stack
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE, HOST = torch.device("cpu:0"), torch.device("cpu")
READS = {"__bool__", "__float__", "__int__", "__index__", "equal", "item", "numpy", "tolist"}
"""Functions that bring values of a tensor to the host."""
SIZED = {"argwhere", "masked_select", "nonzero", "unique"}
"""Functions for whose result the host must wait, because its size depends on values."""
INDEXES = {"__getitem__", "__setitem__"}
"""Functions that send an index from the host, or wait for the number of places of a mask."""
MADE = {"as_tensor", "new_tensor", "tensor"}
"""Functions that send numbers from the host, if they make a tensor on the device."""


class Crossings(TorchFunctionMode):
    """Context that counts crossings by the lines of the package that cause them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.lines.values())

    def __enter__(self) -> Any:
        self._from_numpy = torch.from_numpy  # PyTorch does not tell a mode about it
        torch.from_numpy = lambda array: on_host(self._from_numpy(array))
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        torch.from_numpy = self._from_numpy
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:
            return device_of(args[0])
        name, result = getattr(func, "__name__", ""), func(*args, **kwargs)
        if name == "__get__":
            return result
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        there = destination(name, args, kwargs, given)
        if crosses(name, args, given, there):
            stack = extract_stack()
            line = [frame for frame in stack if "/src/coterie/" in frame.filename] or stack[:-1]
            self.lines[f"{line[-1].filename}:{line[-1].lineno}"] += 1
        if any(result is value and device_of(value) != there for value in given):
            result = result.detach()  # on the CPU nothing was copied
        return tree_map_only(Tensor, on_host, result) if there == HOST else result


def on_host(value: Tensor) -> Tensor:
    """Mark a tensor as one of the host."""
    value.is_on_host = True  # type: ignore[attr-defined]
    return value


def device_of(value: Tensor) -> torch.device:
    return HOST if getattr(value, "is_on_host", False) else DEVICE


def destination(name: str, args: Any, kwargs: Any, given: list[Tensor]) -> torch.device:
    """Return the device of the result."""
    if name == "cpu":
        return HOST
    if name == "to" and isinstance(args[1], Tensor):
        return device_of(args[1])
    named = [value for value in (kwargs.get("device"), *args[1:2]) if isinstance(value, torch.device)]
    return named[0] if named else DEVICE if any(device_of(value) == DEVICE for value in given) else HOST


def crosses(name: str, args: Any, given: list[Tensor], there: torch.device) -> bool:
    """Return whether a call makes the host and the device wait for each other, or copies between them."""
    devices = {device_of(value) for value in given}
    if name in ("cpu", "to", "copy_"):
        return bool(devices - {there})
    if name in READS | SIZED:
        return DEVICE in devices
    if name in INDEXES and device_of(args[0]) == DEVICE:
        keys = args[1] if isinstance(args[1], tuple) else (args[1],)
        sent = [key for key in keys if isinstance(key, list | Tensor)]
        return any(isinstance(key, list) or key.dtype == torch.bool or device_of(key) == HOST for key in sent)
    if any(value.ndim for value in given if device_of(value) == HOST) and DEVICE in devices and name != "__setitem__":
        raise AssertionError(f"{name} mixes devices")
    return name in MADE and there == DEVICE
