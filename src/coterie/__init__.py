"""Personalized federated learning: exact, fast, readable, deployable."""

import os
from typing import TYPE_CHECKING

# OpenMP's threads wait for each other in busy loops: next to another busy process, small operations took thirty times
# as long. A short loop is as good on a quiet machine. This must be set before PyTorch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

__all__ = ["Federation", "Recipe", "Run", "UserError", "load", "methods", "train"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from coterie import methods
    from coterie.data.federation import Federation
    from coterie.errors import UserError
    from coterie.recipe import Recipe
    from coterie.run import Run, load
    from coterie.training import train
else:
    # Loaded when they are first used: importing PyTorch takes seconds, and `coterie --help` does not need it.
    _HOMES = {
        "Federation": "data.federation",
        "Recipe": "recipe",
        "Run": "run",
        "UserError": "errors",
        "load": "run",
        "train": "training",
    }

    def __getattr__(name):
        from importlib import import_module

        if name == "methods":
            return import_module("coterie.methods")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"coterie.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
