"""One file a method."""

from coterie.methods.fedavg import FedAvg
from coterie.methods.pflego import PFLEGO

__all__ = ["PFLEGO", "FedAvg"]
