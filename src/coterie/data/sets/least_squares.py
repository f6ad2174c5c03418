"""Linear regression with the curvature that is asked for, to hold strongly convex theory against.

Client i has n training inputs, the rows of A_i, and the targets A_i w_i + noise. A_iᵀA_i / n has the eigenvalues
mu = λ_1 < ... < λ_d = L, in geometric progression, along directions of the client's own; w_i = w + heterogeneity · z_i
with E|w|² = E|z_i|² = 1. So, exactly:

- The loss of a linear model is |A_i w - y_i|² / n, without the usual ½: it is 2 mu strongly convex and 2 L smooth.
- The columns of A_i have mean zero, so that an intercept is a direction of its own, with curvature 2: with one, as in
  the model `logreg`, the loss is 2 min(mu, 1) strongly convex and 2 max(L, 1) smooth.
- Without noise w_i is client i's minimum, of loss 0; without heterogeneity it is everybody's.

Test inputs are normal with the same covariance, a third as many.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from coterie.data.examples import Examples, Groups
from coterie.data.sets.dataset import Dataset
from coterie.errors import UserError
from coterie.settings import Count, Rate, Size, settings

Curvature = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@settings
class LeastSquares(Dataset):
    """Linear regression of a prescribed condition number L / mu for each client; in float64."""

    usual_partition: ClassVar[str] = "natural"
    usual_model: ClassVar[str] = "logreg"

    mu: Curvature = 0.01
    """The least eigenvalue of A_iᵀA_i / n."""
    L: Curvature = 1.0
    """The largest eigenvalue of A_iᵀA_i / n."""
    features: Annotated[int, Field(ge=2)] = 20
    """d, at least 2 for the two eigenvalues."""
    clients: Count = 20
    examples: Count = 60
    """n, the training examples of each client: more than features."""
    heterogeneity: Rate = 1.0
    """How far the clients' own solutions lie from the common one."""
    noise: Rate = 0.1
    """Its deviation in the targets."""
    seed: Size = 0

    def load(self) -> Examples:
        if self.mu > self.L:
            raise UserError(f"data.mu = {self.mu} is more than data.L = {self.L}")
        if self.examples <= self.features:
            raise UserError(f"data.examples = {self.examples} must be more than data.features = {self.features}")
        rng, I, n, d = np.random.default_rng(self.seed), self.clients, self.examples, self.features  # noqa: E741
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
