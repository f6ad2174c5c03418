"""Components by kind and name, loaded when they are first used.

Other packages add their own through entry points of the groups `coterie.KIND`, such as `coterie.method`.
"""

import dataclasses
import difflib
import importlib
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from coterie.errors import UserError

BUILT_IN: dict[str, dict[str, str]] = {
    "method": {
        "apfl": "coterie.methods.apfl:APFL",
        "centralised": "coterie.methods.centralised:Centralised",
        "ditto": "coterie.methods.ditto:Ditto",
        "fedadam": "coterie.methods.fedopt:FedAdam",
        "fedamp": "coterie.methods.fedamp:FedAMP",
        "fedavg": "coterie.methods.fedavg:FedAvg",
        "fedavgm": "coterie.methods.fedavgm:FedAvgM",
        "fedbabu": "coterie.methods.fedbabu:FedBABU",
        "fedbn": "coterie.methods.fedbn:FedBN",
        "feddane": "coterie.methods.feddane:FedDANE",
        "fedcr": "coterie.methods.fedcr:FedCR",
        "feddecay": "coterie.methods.feddecay:FedDecay",
        "fedem": "coterie.methods.fedem:FedEM",
        "fedpac": "coterie.methods.fedpac:FedPAC",
        "fedper": "coterie.methods.fedper:FedPer",
        "fedprox": "coterie.methods.fedprox:FedProx",
        "fedrecon": "coterie.methods.fedrecon:FedRecon",
        "fedrep": "coterie.methods.fedrep:FedRep",
        "fedsgd": "coterie.methods.fedsgd:FedSGD",
        "fedsr": "coterie.methods.fedsr:FedSR",
        "fedyogi": "coterie.methods.fedopt:FedYogi",
        "flix": "coterie.methods.flix:FLIX",
        "fomaml": "coterie.methods.fomaml:FOMAML",
        "gd": "coterie.methods.gd:GD",
        "i-scaffnew": "coterie.methods.i_scaffnew:IScaffnew",
        "l2gd": "coterie.methods.l2gd:L2GD",
        "lg-fedavg": "coterie.methods.lg_fedavg:LGFedAvg",
        "local": "coterie.methods.local:Local",
        "per-fedavg": "coterie.methods.per_fedavg:PerFedAvg",
        "pfedme": "coterie.methods.pfedme:PFedMe",
        "pflego": "coterie.methods.pflego:PFLEGO",
        "reptile": "coterie.methods.reptile:Reptile",
        "scafflix": "coterie.methods.scafflix:Scafflix",
        "scaffnew": "coterie.methods.scaffnew:Scaffnew",
        "scaffold": "coterie.methods.scaffold:Scaffold",
    },
    "data": {
        "a6a": "coterie.data.sets.libsvm_sets:A6A",
        "a9a": "coterie.data.sets.libsvm_sets:A9A",
        "cifar-10": "coterie.data.sets.cifar10:CIFAR10",
        "cifar-100": "coterie.data.sets.cifar100:CIFAR100",
        "diabetes": "coterie.data.sets.diabetes:Diabetes",
        "digits": "coterie.data.sets.digits:Digits",
        "emnist": "coterie.data.sets.emnist:EMNIST",
        "fashion-mnist": "coterie.data.sets.fashion_mnist:FashionMNIST",
        "femnist": "coterie.data.sets.femnist:FEMNIST",
        "folder": "coterie.data.sets.folder:Folder",
        "least-squares": "coterie.data.sets.least_squares:LeastSquares",
        "libsvm": "coterie.data.sets.libsvm:LibSVM",
        "mnist": "coterie.data.sets.mnist:MNIST",
        "mnist-writers": "coterie.data.sets.mnist_writers:MNISTWriters",
        "mushrooms": "coterie.data.sets.libsvm_sets:Mushrooms",
        "omniglot": "coterie.data.sets.omniglot:Omniglot",
        "pubmed": "coterie.data.sets.pubmed:PubMed",
        "shakespeare": "coterie.data.sets.shakespeare:Shakespeare",
        "sst2": "coterie.data.sets.sst2:SST2",
        "synthetic": "coterie.data.sets.synthetic:Synthetic",
        "table": "coterie.data.sets.table:Table",
        "w6a": "coterie.data.sets.libsvm_sets:W6A",
        "w8a": "coterie.data.sets.libsvm_sets:W8A",
    },
    "partition": {
        "classes": "coterie.data.partition.classes:Classes",
        "consecutive": "coterie.data.partition.consecutive:Consecutive",
        "contiguous": "coterie.data.partition.contiguous:Contiguous",
        "dirichlet": "coterie.data.partition.dirichlet:Dirichlet",
        "feature-clusters": "coterie.data.partition.feature_clusters:FeatureClusters",
        "iid": "coterie.data.partition.iid:IID",
        "label-ratio": "coterie.data.partition.label_ratio:LabelRatio",
        "louvain": "coterie.data.partition.louvain:Louvain",
        "natural": "coterie.data.partition.natural:Natural",
        "quantity": "coterie.data.partition.quantity:Quantity",
    },
    "model": {
        "bert-tiny": "coterie.models.bert_tiny:BertTiny",
        "cnn-cifar": "coterie.models.cnn_cifar:CNNCifar",
        "cnn-dropout": "coterie.models.cnn_dropout:CNNDropout",
        "cnn-femnist": "coterie.models.cnn_femnist:CNNFemnist",
        "conv4": "coterie.models.conv4:Conv4",
        "gin": "coterie.models.gin:GIN",
        "lenet": "coterie.models.lenet:LeNet",
        "logreg": "coterie.models.logreg:LogReg",
        "lstm": "coterie.models.lstm:LSTM",
        "mlp": "coterie.models.mlp:MLP",
    },
    "aggregate": {"mean": "coterie.aggregate.mean:Mean"},
    "engine": {
        "fused": "coterie.clients.fused:Fused",
        "loop": "coterie.clients.loop:Loop",
        "ray": "coterie.clients.ray:Ray",
        "vmap": "coterie.clients.vmap:Vmap",
    },
    "experiment": {
        "feddecay-beta": "coterie.lab.papers.feddecay:Beta",
        "feddecay-femnist": "coterie.lab.papers.feddecay:FEMNIST",
        "feddecay-pubmed": "coterie.lab.papers.feddecay:PubMed",
        "feddecay-pubmed-grid": "coterie.lab.papers.feddecay:PubMedGrid",
        "feddecay-pubmed-weights": "coterie.lab.papers.feddecay:Weights",
        "feddecay-sst2": "coterie.lab.papers.feddecay:SST2",
        "feddecay-tuned": "coterie.lab.papers.feddecay:Tuned",
        "feddecay-writers": "coterie.lab.papers.feddecay:Writers",
        "feddecay-writers-epochs": "coterie.lab.papers.feddecay:WritersEpochs",
        "feddecay-writers-grid": "coterie.lab.papers.feddecay:WritersGrid",
        "pflego-averaging": "coterie.lab.papers.pflego:Averaging",
        "pflego-fair": "coterie.lab.papers.pflego:Fair",
        "pflego-figures2-5": "coterie.lab.papers.pflego:Figures2To5",
        "pflego-figure7": "coterie.lab.papers.pflego:Figure7",
        "pflego-figure8": "coterie.lab.papers.pflego:Figure8",
        "pflego-figure9": "coterie.lab.papers.pflego:Figure9",
        "pflego-k1": "coterie.lab.papers.pflego:OneClass",
        "pflego-population": "coterie.lab.papers.pflego_population:Population",
        "pflego-table1": "coterie.lab.papers.pflego:Table1",
        "pflego-table2": "coterie.lab.papers.pflego:Table2",
        "pflego-table3": "coterie.lab.papers.pflego:Table3",
        "scafflix-coins": "coterie.lab.papers.scafflix_coins:ScafflixCoins",
        "scafflix-convex": "coterie.lab.papers.scafflix_convex:ScafflixConvex",
        "scafflix-figure8": "coterie.lab.papers.scafflix_nets:Figure8",
        "scafflix-nets": "coterie.lab.papers.scafflix_nets:Nets",
        "scafflix-table2": "coterie.lab.papers.scafflix_table2:Table2",
    },
}


def names(kind: str) -> list[str]:
    """Return the names of all components of a kind."""
    return sorted(_targets(kind))


def load(kind: str, name: str) -> Any:
    """Return the class with that name."""
    targets = _targets(kind)
    if name not in targets:
        raise UserError(
            f"unknown {_SINGULAR[kind]} {name!r}{nearest(name, targets)}; available: {', '.join(names(kind))}"
        )
    module, _, attribute = targets[name].partition(":")
    if name in BUILT_IN[kind]:
        return getattr(importlib.import_module(module), attribute)
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            raise TypeError("it is not a class with the decorator @settings")
    except (Exception, SystemExit) as error:
        raise UserError(
            f"the {_SINGULAR[kind]} {name!r} of an installed plug-in ({targets[name]}) cannot be loaded: "
            f"{type(error).__name__}: {error}; fix or uninstall the plug-in"
        ) from error
    return found


def recipes() -> dict[str, Path]:
    """Return the recipes that come with Coterie, by name."""
    installed, checkout = Path(__file__).parent / "recipes", Path(__file__).parents[2] / "recipes"
    folder = installed if installed.is_dir() else checkout
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.toml"))}


def name_of(kind: str, component: object) -> str:
    """Return the name a component is registered under, or the name of its class if it is not registered."""
    own = type(component)
    return next((name for name, target in _targets(kind).items() if _loaded(target) is own), own.__qualname__)


def nearest(word: str, choices: Any) -> str:
    """Return a suggestion in brackets if one of the choices is close to the word, otherwise an empty string."""
    names = {str(choice).lower(): str(choice) for choice in choices}
    close = difflib.get_close_matches(str(word).lower(), names, n=1)
    return f" (did you mean {names[close[0]]!r}?)" if close else ""


_SINGULAR = {
    "method": "method",
    "data": "data set",
    "partition": "partition",
    "model": "model",
    "aggregate": "aggregation rule",
    "engine": "engine",
    "experiment": "experiment",
}


def _targets(kind: str) -> dict[str, str]:
    return {**_third_party(kind), **BUILT_IN[kind]}


def _loaded(target: str) -> object:
    """Return the object of an entry point, or None if its module is not imported yet."""
    module, _, attribute = target.partition(":")
    return getattr(sys.modules.get(module), attribute, None)


@cache  # searching all installed packages takes 9 ms
def _third_party(kind: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=f"coterie.{kind}")}
