"""Synthetic linear regression with a chosen curvature, to test the theory of strongly convex problems.

Client i has n training inputs, the rows of A_i, and the targets A_i w_i + noise. The eigenvalues of A_iᵀA_i / n are
mu = λ_1 < ... < λ_d = L, in geometric progression. Each client has its own eigenvectors. Its weights are
w_i = w + heterogeneity · z_i with E|w|² = E|z_i|² = 1. The following holds exactly:

- The loss of a linear model is |A_i w - y_i|² / n, without the usual ½. It is 2 mu strongly convex and 2 L smooth.
- The columns of A_i have mean zero, so an intercept is a separate direction with curvature 2. With an intercept, as in
  the model `logreg`, the loss is 2 min(mu, 1) strongly convex and 2 max(L, 1) smooth.
- Without noise, w_i is the minimum of client i, with loss 0. Without heterogeneity, all clients share this minimum.

Test inputs are normal with the same covariance. There are a third as many.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from coterie.data.examples import Examples, Groups
from coterie.data.files import limits
from coterie.data.sets.dataset import Dataset
from coterie.errors import UserError
from coterie.settings import Count, Rate, Size, settings

Curvature = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@settings
class LeastSquares(Dataset):
    """Synthetic linear regression with a chosen condition number L / mu for each client, in float64."""

    usual_partition: ClassVar[str] = "natural"
    usual_model: ClassVar[str] = "logreg"

    mu: Curvature = 0.01
    """Smallest eigenvalue of A_iᵀA_i / n."""
    L: Curvature = 1.0
    """Largest eigenvalue of A_iᵀA_i / n."""
    features: Annotated[int, Field(ge=2)] = 20
    """d, the number of features. At least 2, because there are two eigenvalues to set."""
    clients: Count = 20
    """Number of clients."""
    examples: Count = 60
    """n, the number of training examples of each client. Must be larger than `features`."""
    heterogeneity: Rate = 1.0
    """Distance of the clients' own solutions from the common one. 0 gives all clients the same solution."""
    noise: Rate = 0.1
    """Standard deviation of the noise in the targets."""
    seed: Size = 0
    """Seed of the data, separate from run.seed."""

    def load(self) -> Examples:
        if self.mu > self.L:
            raise UserError(f"data.mu = {self.mu} must not be larger than data.L = {self.L}")
        if self.examples <= self.features:
            raise UserError(f"data.examples = {self.examples} must be larger than data.features = {self.features}")
        needed = 32 * self.clients * (self.features + 1) * (self.examples + self.features)
        limits.check_settings(needed, "data.clients, data.examples or data.features")
        rng = np.random.default_rng(self.seed)
        I = self.clients  # noqa: E741
        n = self.examples
        d = self.features
        ones_first = rng.normal(size=(I, n, d + 1))
        ones_first[:, :, 0] = 1
        U, V = np.linalg.qr(ones_first).Q[:, :, 1:], np.linalg.qr(rng.normal(size=(I, d, d))).Q
        to_inputs = np.sqrt(np.geomspace(self.mu, self.L, d))[:, None] * V.transpose(0, 2, 1)  # (I, d, d)
        x_train, x_test = np.sqrt(n) * U @ to_inputs, rng.normal(size=(I, n // 3, d)) @ to_inputs
        w = (rng.normal(size=d) + self.heterogeneity * rng.normal(size=(I, d))) / np.sqrt(d)
        y_train, y_test = (
            (x @ w[:, :, None])[:, :, 0] + self.noise * rng.normal(size=x.shape[:2]) for x in (x_train, x_test)
        )
        client = np.arange(I)
        groups = Groups(np.repeat(client, n), np.repeat(client, n // 3), tuple(map(str, client)))
        flat = x_train.reshape(-1, d), y_train.ravel(), x_test.reshape(-1, d), y_test.ravel()
        return Examples(*flat, labels=(), groups=groups)
