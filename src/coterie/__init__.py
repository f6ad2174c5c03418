"""Personalized federated learning: exact, fast, readable, deployable."""

import os

# OpenMP's threads wait for each other in loops that burn a processor: beside another busy process, small operations
# took thirty times as long. A short loop is as good on a quiet machine. It must be said before PyTorch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

from coterie import methods
from coterie.errors import UserError
from coterie.federation import Federation
from coterie.run import Run
from coterie.training import train

__all__ = ["Federation", "Run", "UserError", "methods", "train"]
__version__ = "0.1.0"
