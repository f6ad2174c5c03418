"""Synthetic(alpha, beta): T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Section 5.1.

Client k has a model of its own, which labels inputs of its own:

    u_k ~ N(0, alpha),  W_k and b_k ~ N(u_k, 1)            the model
    B_k ~ N(0, beta),   v_k ~ N(B_k, 1),  x ~ N(v_k, Σ)    the inputs, Σ diagonal with Σ_jj = j^-1.2
    y = argmax softmax(W_k x + b_k)

alpha and beta are variances here, as the paper writes them; its code takes them for deviations, which is the same for
the usual 0 and 1. Even Synthetic(0, 0) has a model for each client, and no other alpha makes these differ more: u_k is
added to the weights of all classes alike, which leaves the argmax where it is. alpha is there because papers name it.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Examples, Groups
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.split import split
from coterie.settings import Count, Rate, Size, settings

_AT_ONCE = 512
"""Clients whose models are in memory."""


@settings
class Synthetic(Dataset):
    """Synthetic(alpha, beta) of FedProx: each client labels its own inputs by its own model; a quarter to test."""

    usual_partition: ClassVar[str] = "natural"
    usual_model: ClassVar[str] = "logreg"

    alpha: Rate = 1.0
    """The variance of the models' means, as published; it changes no label."""
    beta: Rate = 1.0
    """How much the clients' inputs differ: the variance of their means."""
    clients: Count = 30
    examples: Count = 100
    """Of each client, to train and to test, on average."""
    sizes: Literal["power-law", "equal"] = "power-law"
    """By a power law, half have less than 0.71 of the average and nobody less than half of it; the largest of I clients
    has about √I / 2 times as much."""
    features: Count = 60
    classes: Count = 10
    seed: Size = 0

    def load(self) -> Examples:
        rng = np.random.default_rng(self.seed)
        sizes = self._sizes(rng)
        client, starts = np.repeat(np.arange(self.clients), sizes), np.cumsum(sizes) - sizes
        x, y = np.empty((len(client), self.features), dtype=np.float32), np.empty(len(client), dtype=np.int64)
        for clients, size in _alike(sizes):
            rows = starts[clients][:, None] + np.arange(size)
            x[rows], y[rows] = self._draw(len(clients), size, rng)
        train, test = split(client, share=0.25)
        groups = Groups(client[train], client[test], tuple(map(str, range(self.clients))))
        return Examples(x[train], y[train], x[test], y[test], tuple(range(self.classes)), groups)

    def _sizes(self, rng: np.random.Generator) -> Index:
        if self.sizes == "equal":
            return np.full(self.clients, self.examples)
        drawn = self.examples / 2 * (1 + rng.pareto(2, self.clients))  # Pareto with shape 2 has twice its least as mean
        return np.maximum(np.round(drawn).astype(np.int64), 1)

    def _draw(self, num_clients: int, size: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], Index]:
        """Inputs (C, N, F) and classes (C, N) of so many clients."""

        def normal(*shape: int) -> NDArray[np.float32]:
            return rng.standard_normal((num_clients, *shape), dtype=np.float32)

        u, B = np.sqrt(self.alpha) * normal(1, 1), np.sqrt(self.beta) * normal(1, 1)
        W, b = u + normal(self.features, self.classes), u + normal(1, self.classes)
        deviations = np.arange(1, self.features + 1, dtype=np.float32) ** -0.6
        x = B + normal(1, self.features) + deviations * normal(size, self.features)
        return x, (x @ W + b).argmax(axis=2)


def _alike(sizes: Index) -> Iterator[tuple[Index, int]]:
    """Clients of one size, not too many together, and that size."""
    by_size = np.argsort(sizes, kind="stable")
    starts = np.flatnonzero(np.diff(sizes[by_size], prepend=0))
    for same in np.split(by_size, starts[1:]):
        for at in range(0, len(same), _AT_ONCE):
            yield same[at : at + _AT_ONCE], int(sizes[same[0]])
