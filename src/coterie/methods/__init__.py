"""One file a method."""

from coterie.methods.centralised import Centralised
from coterie.methods.ditto import Ditto
from coterie.methods.fedadam import FedAdam
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavgm import FedAvgM
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedbn import FedBN
from coterie.methods.feddecay import FedDecay
from coterie.methods.fedem import FedEM
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrecon import FedRecon
from coterie.methods.fedrep import FedRep
from coterie.methods.fedsgd import FedSGD
from coterie.methods.fedyogi import FedYogi
from coterie.methods.flix import FLIX
from coterie.methods.fomaml import FOMAML
from coterie.methods.gd import GD
from coterie.methods.i_scaffnew import IScaffnew
from coterie.methods.local import Local
from coterie.methods.per_fedavg import PerFedAvg
from coterie.methods.pfedme import PFedMe
from coterie.methods.pflego import PFLEGO
from coterie.methods.reptile import Reptile
from coterie.methods.scafflix import Scafflix
from coterie.methods.scaffnew import Scaffnew
from coterie.methods.scaffold import Scaffold

__all__ = [
    "FLIX",
    "FOMAML",
    "GD",
    "PFLEGO",
    "Centralised",
    "Ditto",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedDecay",
    "FedEM",
    "FedPer",
    "FedProx",
    "FedRecon",
    "FedRep",
    "FedSGD",
    "FedYogi",
    "IScaffnew",
    "Local",
    "PFedMe",
    "PerFedAvg",
    "Reptile",
    "Scafflix",
    "Scaffnew",
    "Scaffold",
]
