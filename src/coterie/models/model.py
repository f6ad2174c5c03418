"""What every network of this room is: settings that build an `nn.Module`, and the name of its head."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from torch import nn

from coterie.core.task import BufferPolicy, HeadInit
from coterie.settings import settings


@settings
class Model(ABC):
    labels: Literal["auto", "local", "global"] = "auto"
    """What the head tells apart: each client's own classes, the union of all, or as the method has it by default."""
    buffers: BufferPolicy = "average"
    """BatchNorm statistics travel and are averaged, or stay with the client."""
    head_init: HeadInit = "default"
    """How personal heads are drawn: as PyTorch does it, uniformly from [0, 1) as the authors of PFLEGO do, or with
    orthonormal rows as in FedBABU."""
    init: Literal["default", "glorot-normal"] = "default"
    """How the initial network is drawn: as PyTorch does it, or as the authors of PFLEGO do."""

    @property
    def head(self) -> str:
        """The submodule where the body ends and the head begins."""
        return "head"

    @abstractmethod
    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        """A freshly drawn network for inputs of this shape (without the batch)."""


def body_and_head(layers: Sequence[nn.Module], features: int, num_outputs: int) -> nn.Module:
    """Those layers as "body", and on its features one linear layer as "head"."""
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(*layers))
    net.add_module("head", nn.Linear(features, num_outputs))
    return net
