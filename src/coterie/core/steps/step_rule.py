"""How each client chooses its step size γ_i, and how all of them choose p, the probability of an aggregation."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from coterie.core.data import Data
from coterie.core.steps import control
from coterie.core.steps.convex import Bound, curvature, theory
from coterie.core.steps.sampling import ExpectedSmoothness, expected_smoothness
from coterie.core.task import Task
from coterie.core.tree import Tree

Measured = Mapping[str, Mapping[str, float]]
"""Numbers of each client, by name."""


class StepRule(NamedTuple):
    """How clients choose step sizes."""

    gamma: float | str | Mapping[str, float]
    """Numbers, or a rule for the data of each client: those of `Bound`, "1/A" for minibatches, or "adaptive"."""
    p: float | str
    """Probability of an aggregation, or "optimal"."""
    mu: float
    batch_size: int
    epsilon: float
    """Target accuracy, by which the noise of minibatches limits the step sizes; 0 does not limit them."""
    mu_min: float
    """Smallest strong convexity of all clients; 0 if they have to compute it."""

    @classmethod
    def of(cls, method: object) -> "StepRule":
        """Return the rule that a method's fields describe."""
        return cls(*(getattr(method, name) for name in cls._fields))

    def chosen(self, task: Task, personal: Tree, data: Data, at: Tree) -> Tree:
        """Return the personal state with γ_i for steps from the model `at`."""
        if self.gamma == "adaptive":
            return control.watching(control.with_step(task, personal, data, self.mu, "1/hessian", at))
        gamma = cast(float | Bound | Mapping[str, float], self.gamma)
        if self.gamma == "1/A":
            gamma = self._of_batches(task, data).step(self.epsilon, self.mu_min)
        return control.with_step(task, personal, data, self.mu, gamma, at)

    @property
    def is_calibrated(self) -> bool:
        """Whether a client can choose its step size without numbers of the others, and p is known."""
        limited = self.gamma == "1/A" and self.epsilon > 0
        return self.p != "optimal" and (self.mu_min > 0 or not limited)

    def measure(self, task: Task, data: Data) -> dict[str, float]:
        """Return the numbers of a client that `calibrated` needs."""
        if self.gamma != "1/A":
            return theory(task, data, self.mu, self.gamma, self.p)
        return {"mu": curvature(task, data, self.mu).mu, **self._of_batches(task, data)._asdict()}

    def calibrated(self, measured: Measured) -> dict[str, Any]:
        """Return p and mu_min."""
        if self.gamma != "1/A":
            return {"p": control.optimal_p(self.gamma, measured)}
        mu_min = self.mu_min or min(client["mu"] for client in measured.values())
        limited = {
            name: {"mu": own["mu"], "step": ExpectedSmoothness(own["A"], own["C"]).step(self.epsilon, mu_min)}
            for name, own in measured.items()
        }
        return {"p": control.optimal_p(self.gamma, limited) if self.p == "optimal" else self.p, "mu_min": mu_min}

    def _of_batches(self, task: Task, data: Data) -> ExpectedSmoothness:
        return expected_smoothness(task, task.initial, data, self.mu, self.batch_size)
