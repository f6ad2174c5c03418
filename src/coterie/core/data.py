"""The examples of one client, as its functions receive them."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Index = NDArray[np.int64]
Inputs = Any
"""What a model takes: a tensor (N, ...), or a Graph of N nodes."""


class Data(NamedTuple):
    """Examples of one client. An engine that batches clients pads them; padding has mask 0 and does not count."""

    x: Inputs
    y: Tensor  # (N,) or (N, T)
    mask: Tensor  # (N,) bool
    classes: Tensor  # (K,) bool: which outputs are classes of this client
    stream: Tensor  # () key of the client's random stream in this round, from which minibatches are drawn


class Graph(NamedTuple):
    """The input of a graph model: all nodes of one client, and the edges among them.

    It contains the nodes of every split. The mask in Data says which of them are trained or tested on.
    """

    nodes: Tensor  # (N, F)
    edges: Tensor  # (2, E) from, to; both directions of an undirected edge
