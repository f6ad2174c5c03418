"""The methods, one file each. Their classes are loaded when they are first used."""

from typing import Any

from coterie import registry

_CLASSES = {target.partition(":")[2]: name for name, target in registry.BUILT_IN["method"].items()}
__all__ = sorted(_CLASSES)


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return registry.load("method", _CLASSES[name])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
