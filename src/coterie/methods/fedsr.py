"""FedSR: a simple representation, regularized in its norm and in its conditional mutual information with the input.

A. T. Nguyen, P. H. S. Torr, S.-N. Lim, "FedSR: A Simple and Effective Domain Generalization Method for Federated
Learning", NeurIPS 2022.

    Server, round t:
    1.  draw a cohort; send it the model w: a body, which gives μ and σ of each example, and a head
    2.  w ← the mean of the w_i over the cohort

    Client i, with a reference N(r_y, s_y²) for each class y and a scale c (at first r = 0, s = softplus(1), c = 1):
    3.  w_i ← w;  τ times, on the next minibatch, with z = μ + σ ε for one draw of ε:
    4.    descend by η along the gradient over w_i, r, s and c of
            mean loss of the head at z + a_L2R mean ||z|| + a_CMI mean KL(N(c μ, c² σ²) || N(r_y, s_y²))
    5.  send w_i − w; keep r, s and c

    To adapt ("FedSR-FT"):
    6.  the same steps on the last layer of the body, which gives μ and σ, and on the head, r, s and c

The model must have a head that begins with a `Gaussian`, such as `lenet` with `latent`. On any other model z = μ is the
features and σ = 1. With both weights 0 this is FedAvg with equal clients.
Deviation: step 4 has the norm of z, as in the authors' code. The paper's regularizer is its square, which pulls long
representations harder.
Deviation: the scale c is in the authors' code, and not in the paper.
Deviation: plain steps, with clipping if asked for. The authors' momentum and weight decay are left out.
"""

from torch import Tensor
from torch.nn.functional import softplus

from coterie.core.fields import BatchSize, Clip, LocalRate, LocalSteps, Rate, Users
from coterie.core.gaussian import Normal
from coterie.core.method import Client, Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import (
    class_table,
    classes_of,
    distribution,
    local_sgd,
    loss_of_sample,
    mean_over_answers,
    sampled,
)
from coterie.core.tree import displacement, pick

REFERENCES = (".reference", ".raw", ".scale")
"""Names of r (C, d), of what s = softplus(raw) is computed from, and of c."""


@settings
class FedSR(Method):
    """FedAvg on random representations that are kept short and close to a reference of their class."""

    gradients_per_step = 1

    tau: LocalSteps = 50
    eta: LocalRate = 0.01
    l2r: Rate = 0.01
    """a_L2R: weight of the norm of the representation."""
    cmi: Rate = 0.001
    """a_CMI: weight of the divergence from the reference of the class."""
    users: Users = "equal"
    batch_size: BatchSize = 0
    clip: Clip = 0.0

    def init_personal(self, task: Task, client: Client) -> Tree:
        r = class_table(task)
        references = {".reference": r, ".raw": r + 1, ".scale": r.new_ones(())}
        return {**task.personal_buffers(), **references}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        after, loss = self._trained(task, {**shared, **personal}, data, rnd.steps, task.params)
        return Reply(displacement(after, shared), {"loss": loss}, pick(after, personal))

    def _trained(self, task: Task, start: Tree, data: Data, steps: int, params: tuple[str, ...]) -> tuple[Tree, Tensor]:
        """Do steps 3 and 4 over the given parameters and the references."""

        def objective(params: Tree, batch: Data) -> tuple[Tensor, Tree]:
            return self._loss(task, params, batch)

        over = (*params, *REFERENCES)
        return local_sgd(
            task, start, data, steps, self.eta, self.batch_size, over=over, clip=self.clip, objective=objective
        )

    def _loss(self, task: Task, params: Tree, data: Data) -> tuple[Tensor, Tree]:
        """Return the objective of step 4, and the buffers."""
        features, buffers = task.training_features(params, data.x)
        z, y, c = sampled(task, features), classes_of(data), params[".scale"]
        reference = Normal(params[".reference"][y], softplus(params[".raw"][y]))
        own = distribution(task, features)
        information = Normal(c * own.mean, c * own.deviation).divergence(reference).sum(-1)
        regularizer = self.l2r * z.norm(dim=-1) + self.cmi * information
        return loss_of_sample(task, params, z, data) + mean_over_answers(task, regularizer, data), buffers

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        """Do step 6."""
        layer = task.body[-1].rpartition(".")[0] if task.body else ""
        last = tuple(name for name in task.body if name.rpartition(".")[0] == layer)
        return self._trained(task, {**shared, **personal}, data, steps, last + task.head)[0]
