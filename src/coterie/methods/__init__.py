"""One file a method."""

from coterie.methods.centralised import Centralised
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrecon import FedRecon
from coterie.methods.fedrep import FedRep
from coterie.methods.local import Local
from coterie.methods.pflego import PFLEGO

__all__ = ["PFLEGO", "Centralised", "Ditto", "FedAvg", "FedBABU", "FedPer", "FedProx", "FedRecon", "FedRep", "Local"]
