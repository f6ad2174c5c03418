"""FedProx: federated averaging with a proximal term.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, Algorithm 2.

    Server, round t:
    1.  draw a cohort; send it the model w
    2.  w ← Σ_i (N_i / Σ_j N_j) w_i, the sums over the cohort

    Client i:
    3.  w_i ← an inexact minimizer of ℓ_i(w_i) + (μ/2) ||w_i − w||², found by τ gradient steps of rate η from w
    4.  send w_i − w

With μ = 0 this is FedAvg.
Deviation: the paper draws clients with probability N_i / N and averages them plainly; here they are drawn alike and
weighed by size, as in FedAvg. A client sends how far it moved, which is the same, as the weights sum to one.
"""

from torch import Tensor

from coterie.core.method import Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import Pull, local_sgd, sgd_passes
from coterie.core.tree import displacement, pick, shift


@settings
class FedProx(Method):
    """FedAvg whose local steps are pulled back to the model that was sent."""

    tau: Length = 50
    """Local steps, or "2 epochs" of the client's examples."""
    eta: Rate = 0.007
    """Rate of the local steps."""
    mu: Rate = 0.25
    """Weight of the proximal term."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        after, loss = self._descent(task, shared, personal, data, rnd.steps)
        return {**displacement(after, shared), "loss": loss}, pick(after, personal)

    def _descent(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> tuple[Tree, Tensor]:
        start, pull = {**shared, **personal}, Pull(self.mu, shared)
        return local_sgd(task, start, data, steps, self.eta, self.batch_size, pull=pull)

    def passes(self, size: int, rnd: Round) -> Passes:
        return sgd_passes(size, rnd.steps, self.batch_size)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / sizes.sum()

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        after, _ = self._descent(task, shared, personal, data, steps)
        return after
