"""One file a method."""

from coterie.methods.centralised import Centralised
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrecon import FedRecon
from coterie.methods.fedrep import FedRep
from coterie.methods.flix import FLIX
from coterie.methods.gd import GD
from coterie.methods.i_scaffnew import IScaffnew
from coterie.methods.local import Local
from coterie.methods.pflego import PFLEGO
from coterie.methods.scafflix import Scafflix
from coterie.methods.scaffnew import Scaffnew

__all__ = [
    "FLIX",
    "GD",
    "PFLEGO",
    "Centralised",
    "Ditto",
    "FedAvg",
    "FedBABU",
    "FedPer",
    "FedProx",
    "FedRecon",
    "FedRep",
    "IScaffnew",
    "Local",
    "Scafflix",
    "Scaffnew",
]
