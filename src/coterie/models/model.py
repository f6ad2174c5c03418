"""Base class of all models."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from torch import nn

from coterie.core.heads import HeadInit
from coterie.core.task import BufferPolicy
from coterie.settings import settings


@settings
class Model(ABC):
    """Settings that build a network with a named head."""

    labels: Literal["auto", "local", "global"] = "auto"
    """Classes that the head distinguishes: each client's label set ("local"), all classes ("global"), or the default of
    the method ("auto")."""
    buffers: BufferPolicy = "average"
    """Handling of BatchNorm statistics: averaged over clients ("average"), or kept by each client ("local")."""
    head_init: HeadInit = "default"
    """Initialization of personal heads: PyTorch's ("default"), uniform in [0, 1) as in the PFLEGO authors' code
    ("uniform"), or with orthonormal rows as in FedBABU ("orthogonal")."""
    head_bias: bool = True
    """Whether the head adds a bias to each output. The PFLEGO paper's heads, z = W_i φ, have none."""
    init: Literal["default", "glorot-normal"] = "default"
    """Initialization of the network: PyTorch's ("default"), or that of the PFLEGO authors' code ("glorot-normal")."""

    @property
    def head(self) -> str:
        """Name of the submodule that is the head. All other parameters belong to the body."""
        return "head"

    @abstractmethod
    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """Build a network with random initial values for inputs of this shape (without the batch dimension)."""


def body_and_head(layers: Sequence[nn.Module], features: int, num_outputs: int) -> nn.Module:
    """Combine the layers as "body" with one linear layer on its features as "head"."""
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(*layers))
    net.add_module("head", nn.Linear(features, num_outputs))
    return net
