"""The examples of one client, as its functions receive them."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Index = NDArray[np.int64]
Inputs = Any
"""What a model takes: a tensor (N, ...), or a Graph of N nodes."""


class Data(NamedTuple):
    """Examples of one client. A batched engine pads them; what is padding has mask 0 and counts for nothing."""

    x: Inputs
    y: Tensor  # (N,) or (N, T)
    mask: Tensor  # (N,) bool
    classes: Tensor  # (K,) bool: which of its outputs are classes of this client
    stream: Tensor  # () the client's stream in this round, from which minibatches are drawn


class Graph(NamedTuple):
    """What a model of graphs takes as x: all nodes of the client, whatever split they are in, and the edges among them.

    Which nodes are trained or tested on is the mask's business.
    """

    nodes: Tensor  # (N, F)
    edges: Tensor  # (2, E) from, to; both directions of an undirected edge
