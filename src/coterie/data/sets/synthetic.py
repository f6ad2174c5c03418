"""Synthetic(alpha, beta): T. Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, Section 5.1.

Each client k has its own model, which labels its own inputs:

    u_k ~ N(0, alpha),  W_k and b_k ~ N(u_k, 1)            the model
    B_k ~ N(0, beta),   v_k ~ N(B_k, 1),  x ~ N(v_k, Σ)    the inputs, Σ diagonal with Σ_jj = j^-1.2
    y = argmax softmax(W_k x + b_k)

Here alpha and beta are variances, as in the paper. The paper's code uses them as standard deviations, which is the same
for the usual values 0 and 1. Even in Synthetic(0, 0), each client has its own model. A larger alpha does not make the
models differ more: u_k is added to the weights of all classes equally, which does not change the argmax. alpha is a
setting only because papers name it.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.core.data import Index
from coterie.data.examples import Examples, Groups
from coterie.data.files import limits
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.split import split
from coterie.settings import Count, Rate, Size, settings

_AT_ONCE = 512
"""Number of client models in memory at once."""


@settings
class Synthetic(Dataset):
    """Synthetic(alpha, beta) of FedProx: each client's own model labels its own inputs. A quarter is for testing."""

    usual_partition: ClassVar[str] = "natural"
    usual_model: ClassVar[str] = "logreg"

    alpha: Rate = 1.0
    """Variance of the means of the models, as published. It does not change any label."""
    beta: Rate = 1.0
    """Variance of the means of the inputs. Larger values make the clients' inputs differ more."""
    clients: Count = 30
    """Number of clients."""
    examples: Count = 100
    """Average number of examples of a client, for training and testing together."""
    sizes: Literal["power-law", "equal"] = "power-law"
    """Distribution of client sizes. With "power-law", half of the clients have less than 0.71 of the average, none has
    less than half of it, and the largest of I clients has about √I / 2 times the average."""
    features: Count = 60
    """Number of input features."""
    classes: Count = 10
    """Number of classes."""
    seed: Size = 0
    """Seed of the data, separate from run.seed."""

    def load(self) -> Examples:
        limits.check_settings(
            self.clients * self.examples * (16 * self.features + 64) + 8 * _AT_ONCE * self.features * self.classes,
            "data.clients, data.examples, data.features or data.classes",
        )
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
        drawn = self.examples / 2 * (1 + rng.pareto(2, self.clients))  # a Pareto mean with shape 2 is twice its minimum
        return np.maximum(np.round(drawn).astype(np.int64), 1)

    def _draw(self, num_clients: int, size: int, rng: np.random.Generator) -> tuple[NDArray[np.float32], Index]:
        """Draw inputs (C, N, F) and classes (C, N) for `num_clients` clients of the same size."""

        def normal(*shape: int) -> NDArray[np.float32]:
            return rng.standard_normal((num_clients, *shape), dtype=np.float32)

        u, B = np.sqrt(self.alpha) * normal(1, 1), np.sqrt(self.beta) * normal(1, 1)
        W, b = u + normal(self.features, self.classes), u + normal(1, self.classes)
        deviations = np.arange(1, self.features + 1, dtype=np.float32) ** -0.6
        x = B + normal(1, self.features) + deviations * normal(size, self.features)
        return x, (x @ W + b).argmax(axis=2)


def _alike(sizes: Index) -> Iterator[tuple[Index, int]]:
    """Iterate over groups of clients with the same size, at most `_AT_ONCE` at a time, and that size."""
    by_size = np.argsort(sizes, kind="stable")
    starts = np.flatnonzero(np.diff(sizes[by_size], prepend=0))
    for same in np.split(by_size, starts[1:]):
        for at in range(0, len(same), _AT_ONCE):
            yield same[at : at + _AT_ONCE], int(sizes[same[0]])
