"""Names to components, loaded when asked for. A third party adds its own through entry points of the same groups."""

import difflib
import importlib
import sys
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from coterie.errors import UserError

BUILT_IN: dict[str, dict[str, str]] = {
    "methods": {
        "centralised": "coterie.methods.centralised:Centralised",
        "ditto": "coterie.methods.ditto:Ditto",
        "fedadam": "coterie.methods.fedadam:FedAdam",
        "fedavg": "coterie.methods.fedavg:FedAvg",
        "fedavgm": "coterie.methods.fedavgm:FedAvgM",
        "fedbabu": "coterie.methods.fedbabu:FedBABU",
        "fedbn": "coterie.methods.fedbn:FedBN",
        "feddecay": "coterie.methods.feddecay:FedDecay",
        "fedem": "coterie.methods.fedem:FedEM",
        "fedper": "coterie.methods.fedper:FedPer",
        "fedprox": "coterie.methods.fedprox:FedProx",
        "fedrecon": "coterie.methods.fedrecon:FedRecon",
        "fedrep": "coterie.methods.fedrep:FedRep",
        "fedsgd": "coterie.methods.fedsgd:FedSGD",
        "fedyogi": "coterie.methods.fedyogi:FedYogi",
        "flix": "coterie.methods.flix:FLIX",
        "fomaml": "coterie.methods.fomaml:FOMAML",
        "gd": "coterie.methods.gd:GD",
        "i-scaffnew": "coterie.methods.i_scaffnew:IScaffnew",
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
        "a6a": "coterie.data.libsvm_sets:A6A",
        "a9a": "coterie.data.libsvm_sets:A9A",
        "cifar-10": "coterie.data.cifar10:CIFAR10",
        "cifar-100": "coterie.data.cifar100:CIFAR100",
        "diabetes": "coterie.data.diabetes:Diabetes",
        "digits": "coterie.data.digits:Digits",
        "emnist": "coterie.data.emnist:EMNIST",
        "fashion-mnist": "coterie.data.fashion_mnist:FashionMNIST",
        "femnist": "coterie.data.femnist:FEMNIST",
        "folder": "coterie.data.folder:Folder",
        "least-squares": "coterie.data.least_squares:LeastSquares",
        "libsvm": "coterie.data.libsvm:LibSVM",
        "mnist": "coterie.data.mnist:MNIST",
        "mnist-writers": "coterie.data.mnist_writers:MNISTWriters",
        "mushrooms": "coterie.data.libsvm_sets:Mushrooms",
        "omniglot": "coterie.data.omniglot:Omniglot",
        "pubmed": "coterie.data.pubmed:PubMed",
        "shakespeare": "coterie.data.shakespeare:Shakespeare",
        "sst2": "coterie.data.sst2:SST2",
        "synthetic": "coterie.data.synthetic:Synthetic",
        "table": "coterie.data.table:Table",
        "w6a": "coterie.data.libsvm_sets:W6A",
        "w8a": "coterie.data.libsvm_sets:W8A",
    },
    "partition": {
        "classes": "coterie.partition.classes:Classes",
        "contiguous": "coterie.partition.contiguous:Contiguous",
        "dirichlet": "coterie.partition.dirichlet:Dirichlet",
        "feature-clusters": "coterie.partition.feature_clusters:FeatureClusters",
        "iid": "coterie.partition.iid:IID",
        "label-ratio": "coterie.partition.label_ratio:LabelRatio",
        "louvain": "coterie.partition.louvain:Louvain",
        "natural": "coterie.partition.natural:Natural",
        "quantity": "coterie.partition.quantity:Quantity",
    },
    "models": {
        "bert-tiny": "coterie.models.bert_tiny:BertTiny",
        "cnn-cifar": "coterie.models.cnn_cifar:CNNCifar",
        "cnn-dropout": "coterie.models.cnn_dropout:CNNDropout",
        "cnn-femnist": "coterie.models.cnn_femnist:CNNFemnist",
        "conv4": "coterie.models.conv4:Conv4",
        "gin": "coterie.models.gin:GIN",
        "logreg": "coterie.models.logreg:LogReg",
        "lstm": "coterie.models.lstm:LSTM",
        "mlp": "coterie.models.mlp:MLP",
    },
    "aggregate": {"mean": "coterie.aggregate.mean:Mean"},
    "engine": {
        "fused": "coterie.engine.fused:Fused",
        "loop": "coterie.engine.loop:Loop",
        "ray": "coterie.engine.ray:Ray",
        "vmap": "coterie.engine.vmap:Vmap",
    },
    "experiments": {
        "feddecay-beta": "coterie.experiments.feddecay:Beta",
        "feddecay-femnist": "coterie.experiments.feddecay:FEMNIST",
        "feddecay-pubmed": "coterie.experiments.feddecay:PubMed",
        "feddecay-pubmed-grid": "coterie.experiments.feddecay:PubMedGrid",
        "feddecay-sst2": "coterie.experiments.feddecay:SST2",
        "feddecay-writers": "coterie.experiments.feddecay:Writers",
        "feddecay-writers-grid": "coterie.experiments.feddecay:WritersGrid",
        "pflego-averaging": "coterie.experiments.pflego:Averaging",
        "pflego-fair": "coterie.experiments.pflego:Fair",
        "pflego-figure7": "coterie.experiments.pflego:Figure7",
        "pflego-figure8": "coterie.experiments.pflego:Figure8",
        "pflego-figure9": "coterie.experiments.pflego:Figure9",
        "pflego-k1": "coterie.experiments.pflego:OneClass",
        "pflego-table1": "coterie.experiments.pflego:Table1",
        "pflego-table2": "coterie.experiments.pflego:Table2",
        "pflego-table3": "coterie.experiments.pflego:Table3",
        "scafflix-convex": "coterie.experiments.scafflix_convex:ScafflixConvex",
        "scafflix-nets": "coterie.experiments.scafflix_nets:Nets",
    },
}


def names(kind: str) -> list[str]:
    """What there is of a kind."""
    return sorted(_targets(kind))


def load(kind: str, name: str) -> Any:
    """The class of that name."""
    targets = _targets(kind)
    if name not in targets:
        raise UserError(
            f"unknown {_SINGULAR[kind]} {name!r}{nearest(name, targets)}; there is: {', '.join(names(kind))}"
        )
    module, _, attribute = targets[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def name_of(kind: str, component: object) -> str:
    """The name a component is registered under, or its class's name when it is the caller's own."""
    own = type(component)
    return next((name for name, target in _targets(kind).items() if _loaded(target) is own), own.__qualname__)


def nearest(word: str, choices: Any) -> str:
    """A question in brackets, where something is close."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


_SINGULAR = {
    "methods": "method",
    "data": "data set",
    "partition": "partition",
    "models": "model",
    "aggregate": "aggregation rule",
    "engine": "engine",
    "experiments": "experiment",
}


def _targets(kind: str) -> dict[str, str]:
    return {**_third_party(kind), **BUILT_IN[kind]}


def _loaded(target: str) -> object:
    """What an entry point stands for, which may live elsewhere; None before its module is imported."""
    module, _, attribute = target.partition(":")
    return getattr(sys.modules.get(module), attribute, None)


@cache  # looking through all that is installed takes 9 ms
def _third_party(kind: str) -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=f"coterie.{kind}")}
