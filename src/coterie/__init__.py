"""Personalized federated learning: exact, fast, readable, deployable."""

from coterie import methods
from coterie.errors import UserError
from coterie.federation import Federation
from coterie.run import Run
from coterie.training import train

__all__ = ["Federation", "Run", "UserError", "methods", "train"]
__version__ = "0.1.0"
