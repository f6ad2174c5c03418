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
With a schedule `decay`, step k = 0, 1, ... of a round has the rate η β_k, as in FedDecay; a client adapts at η.
Deviation: the paper draws clients with probability N_i / N and averages them plainly; here they are drawn
uniformly and weighted by size, as in FedAvg. A client sends how far it moved, which gives the same, as the weights sum
to one.
"""

from coterie.core.fields import BatchSize, Decay, LocalRate, LocalSteps, Rate
from coterie.core.method import Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import Pull, fine_tuned, local_rates, sgd_reply


@settings
class FedProx(Method):
    """FedAvg with local steps that are pulled back to the model that was sent."""

    gradients_per_step = 1

    tau: LocalSteps = 50
    eta: LocalRate = 0.007
    mu: Rate = 0.25
    """Weight of the proximal term."""
    batch_size: BatchSize = 0
    decay: Decay = "none"

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        pull = Pull(self.mu, shared)
        rates = local_rates(task, self.eta, self.decay, data, rnd, self.batch_size)
        return sgd_reply(task, shared, personal, data, rnd.steps, rates, self.batch_size, pull=pull)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        pull = Pull(self.mu, shared)
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size, pull=pull)
