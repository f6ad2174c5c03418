"""FedCR: personal heads on a shared random representation, whose class distributions are products over clients.

H. Zhang, C. Li, W. Dai, J. Zou, H. Xiong, "FedCR: Personalized Federated Learning Based on Across-Client Common
Representation with Conditional Mutual Information Regularization", ICML 2023.

    Server, round t:
    1.  draw a cohort; send it the body θ and, for each class y, the Gaussian N(m_y, s_y²), at first N(0, 1)
    2.  θ ← the mean of the θ_i over the cohort; for each class that somebody sent:
            Λ ← 1 + Σ_i Λ_iy,  (m_y, s_y) ← (1 − b) (m_y, s_y) + b (Σ_i S_iy / Λ, Λ^(-1/2))

    Client i, with its own head W_i (drawn at its first visit):
    3.  θ_i ← θ;  τ times, on the next minibatch, with z = μ + σ ε for `samples` draws of ε:
          descend by η along the gradient over θ_i and W_i, both at once, of
            mean loss of the head at z, over the draws, + β mean KL(N(m_y, s_y²) || N(μ, σ²))
    4.  in the last epoch, with μ and σ of each example as they were before its step, for each class y:
            Λ_iy ← Σ_n 1/σ_n²,  S_iy ← Σ_n μ_n/σ_n²
    5.  send θ_i − θ, Λ_i and S_i; keep W_i

    To adapt:
    6.  the steps of 3 on W_i alone

The product of Gaussians has the sum of their precisions 1/σ², and their means are weighted by these; the prior N(0, 1)
is the 1 in Λ. s_y is therefore tiny, and the order of the divergence in 3 matters: with the common Gaussian last, it
would be huge. Step 2 mixes deviations, not variances, as the authors' code does. With b = 0 the Gaussians stay N(0, 1).
The model must have a head that begins with a `Gaussian`, such as `lenet` with `latent`. On any other model z = μ is the
features and σ = 1. With β = 0 this is FedPer with equal clients. Labels must be global, because a row of the tables
means the same class everywhere.
Deviation: sums travel instead of the mean and deviation of each client's product, so that the server only adds.
Deviation: the model is used at μ. The authors average the outputs of many draws, whose limit this is.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.fields import BatchSize, Clip, Count, LocalRate, LocalSteps, Rate
from coterie.core.gaussian import Normal
from coterie.core.method import Client, Data, Method, Passes, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import (
    class_table,
    classes_of,
    distribution,
    epoch_steps,
    local_sgd,
    loss_of_samples,
    mean_over_answers,
    num_steps,
)
from coterie.core.tree import displacement, pick, shift

TABLES = (".mean", ".deviation")
"""Names of m and s (C, d). In a reply they are the places of S_i and Λ_i."""


@settings
class FedCR(Method):
    """Shared body, personal heads, and a pull of random features towards a distribution that clients have in common."""

    gradients_per_step = 1

    tau: LocalSteps = 50
    eta: LocalRate = 0.01
    beta: Rate = 1e-4
    """β: weight of the divergence between the common distribution of a class and that of an example."""
    b2: Annotated[float, Field(ge=0, le=1)] = 1.0
    """b: share of the new product in the common distributions; 0 keeps them as they are."""
    samples: Count = 1
    """Number of draws for each example in a step. The Scafflix table's code takes 18."""
    batch_size: BatchSize = 0
    clip: Clip = 0.0

    def init_shared(self, task: Task) -> Tree:
        m = class_table(task)
        return {**task.shared_body(), ".mean": m, ".deviation": m + 1}

    def init_personal(self, task: Task, client: Client) -> Tree:
        head = task.new_head(client.num_outputs, client.seed) if task.head else {}
        return {**head, **task.personal_buffers()}

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        """Return ones: the server needs sums."""
        return torch.ones_like(sizes)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        epoch = epoch_steps(data, self.batch_size)
        number = num_steps(rnd.steps, data, self.batch_size)
        left = number if isinstance(number, Tensor) else torch.full_like(epoch, number)
        none = torch.zeros_like(shared[".mean"])

        def objective(params: Tree, batch: Data) -> tuple[Tensor, Tree]:
            """Do step 4 as well: what it returns next to the buffers is carried from step to step."""
            loss, buffers, own = self._loss(task, params, batch)
            sums = _summed(task, params, batch, own, is_last=params[".left"] <= epoch)
            return loss, {**buffers, **sums, ".left": params[".left"] - 1}

        start = {**shared, **personal, ".precision": none, ".weighted": none, ".left": left}
        after, loss = local_sgd(
            task, start, data, rnd.steps, self.eta, self.batch_size, clip=self.clip, objective=objective
        )
        tables = {".mean": after[".weighted"], ".deviation": after[".precision"]}
        return Reply({**displacement(after, shared), **tables}, {"loss": loss}, pick(after, personal))

    def passes(self, size: int, rnd: Round) -> Passes | None:
        """Return the cost with one draw. Operations of several are counted."""
        return super().passes(size, rnd) if self.samples == 1 else None

    def _loss(self, task: Task, params: Tree, data: Data) -> tuple[Tensor, Tree, Normal]:
        """Return the objective of step 3, the buffers, and the distribution of each example's features."""
        features, buffers = task.training_features(params, data.x)
        own, y = distribution(task, features), classes_of(data)
        common = Normal(params[".mean"][y], params[".deviation"][y])
        divergence = mean_over_answers(task, common.divergence(own).sum(-1), data)
        return loss_of_samples(task, params, features, data, self.samples) + self.beta * divergence, buffers, own

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        theta = {name: shared[name] for name in shared if name not in TABLES}
        moved = shift(theta, {name: update.tensors[name] / update.weight for name in theta})
        weighted, precision = (update.tensors[name] for name in TABLES)
        product = {".mean": weighted / (1 + precision), ".deviation": (1 + precision) ** -0.5}
        tables = {
            name: torch.where(precision > 0, (1 - self.b2) * shared[name] + self.b2 * value, shared[name])
            for name, value in product.items()
        }
        return {**moved, **tables}, memory

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Do step 6."""

        def objective(params: Tree, batch: Data) -> tuple[Tensor, Tree]:
            return self._loss(task, params, batch)[:2]

        start = {**shared, **personal}
        after, _ = local_sgd(
            task, start, data, steps, self.eta, self.batch_size, over=task.head, clip=self.clip, objective=objective
        )
        return pick(after, personal)


def _summed(task: Task, sums: Tree, data: Data, own: Normal, is_last: Tensor) -> Tree:
    """Add the examples of a batch to the sums of step 4, if it belongs to the last epoch."""
    counted = (task.objective.counted(data.y, data.mask) & is_last).flatten()[:, None]
    precision = torch.where(counted, own.deviation.flatten(0, -2) ** -2, 0)
    y, mean = classes_of(data).flatten(), own.mean.flatten(0, -2)
    added = {".precision": precision, ".weighted": precision * mean}
    return {name: sums[name].index_add(0, y, value) for name, value in added.items()}
