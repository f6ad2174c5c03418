"""FedPAC: features aligned by class centroids, and heads combined with those of similar clients.

J. Xu, X. Tong, S.-L. Huang, "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
ICLR 2023, Algorithm 1.

    Server, round t:
    1.  draw a cohort; send it the body θ and the centroid c_y of each class y
    2.  θ ← Σ_i (N_i / Σ_j N_j) θ_i  and  c_y ← Σ_i n_iy c_iy / Σ_i n_iy, the sums over the cohort
    3.  for each client i of the cohort:  φ_i ← Σ_j a_j φ_j, sent to i alone, where a minimizes
        Σ_j a_j² V_j + || Σ_j a_j (h_i − h_j) ||²  over  a ≥ 0, Σ_j a_j = 1

    Client i, with its own head φ_i over all classes, n_iy examples of class y, and N_i in total:
    4.  on the features f_θ(x):  h_iy = (1/N_i) Σ_{y_n = y} f_θ(x_n),  for each class y, and
        V_i = (1/N_i) [(1/N_i) Σ_n ||f_θ(x_n)||² − Σ_y ||h_iy||²]
    5.  s times:  φ_i ← φ_i − η_g ∇_φ ℓ_i(φ_i, θ) on the next minibatch
    6.  θ_i ← θ;  τ times:  θ_i ← θ_i − η_f ∇_θ [ℓ_i(φ_i, θ_i) + λ R_i(θ_i)] on the next minibatch, where R_i is the
        mean of (f_θ(x) − c_y)² over examples and coordinates. A class without a centroid takes the client's own from
        step 4. There is no R_i in the first round, when no class has one
    7.  send θ_i − θ and the c_iy: the class means of f_{θ_i}; send the letter (φ_i, h_i, V_i); keep φ_i

The objective of step 3 estimates the test loss of a combined head: a variance, and a bias that grows with the distance
between the distributions of clients. The server sees φ_i, h_i and V_i of every single client of the cohort. A client
outside the cohort keeps its head, and a new user gets one by step 5. Without step 3 and with λ = 0 this is FedRep.
The authors' code has s = "1 epoch" and τ = "5 epochs" with batches of 50, η_g = 0.1 and η_f = 0.01.
Deviation: clients send p_iy = n_iy / N_i and p_iy c_iy. The server averages both by size and announces them. Their
quotient is c_y, and a class without a centroid has zeros.
Deviation: the authors' code has momentum and weight decay in steps 5 and 6. In step 3 it drops small eigenvalues of the
matrix and small a_j; here step 3 is solved exactly.
Deviation: steps 4 and 5 share one pass through the body, so that with dropout step 5 sees one mask. Buffers follow the
passes of steps 4 and 6. With BatchNorm, the features of steps 4 and 7 are those of one batch with all examples.
"""

import torch
from torch import Tensor
from torch.func import grad

from coterie.core.fields import BatchSize, Length, LocalSteps, Rate
from coterie.core.method import AdaptsHead, Client, Data, Exchanges, Passes, Reply, Round, Task, Tree, Update, settings
from coterie.core.objective import Classification
from coterie.core.passes import sgd_passes
from coterie.core.steps import head_descent, turns
from coterie.core.steps.class_means import class_means, class_sums, distance_to
from coterie.core.steps.simplex import least_on_simplex
from coterie.core.tree import descend, displacement, pick, shift
from coterie.errors import UserError
from coterie.settings import length


@settings
class FedPAC(AdaptsHead, Exchanges):
    """Shared body with features aligned by class, and personal heads that the server combines for each client."""

    labels = "global"

    tau: LocalSteps = 50
    head_steps: Length = 10
    """s: number of local steps on the head, before those on the body, or "1 epoch"."""
    eta_f: Rate = 0.01
    """Learning rate of the steps on the body."""
    eta_g: Rate = 0.1
    """Learning rate of the steps on the head."""
    lam: Rate = 1.0
    """λ: strength of the pull of features towards the centroids of their classes."""
    collaborate: bool = True
    """Whether the server combines the heads of clients. If not, clients send no letters."""
    batch_size: BatchSize = 0

    def init_shared(self, task: Task) -> Tree:
        if not isinstance(task.objective, Classification):
            raise UserError("FedPAC aligns features by class, but the targets are numbers; choose another method")
        zeros = _zeros(task)
        return {**task.shared_body(), ".pc": zeros, ".p": zeros[:, 0].clone()}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.new_head(client.num_outputs, client.seed), **task.personal_buffers()}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        features, _, buffers = task.body_vjp({**shared, **personal}, data.x)
        h, p, V = class_sums(task, features, data)
        known = shared[".p"] > 0
        c = torch.where(known[:, None], class_means(shared[".pc"], shared[".p"]), class_means(h, p))

        head = self.adapt_head(task, shared, personal, features, data, length(self.head_steps))
        start = {**shared, **personal, **buffers, **head}
        after, loss = self._body_steps(task, start, data, rnd.steps, c, self.lam * known.any().to(features.dtype))

        pc, p, _ = class_sums(task, task.body_vjp(after, data.x)[0], data)
        tensors = {**displacement(after, shared), ".pc": pc, ".p": p}
        letter = {**head, ".h": h, ".V": V} if self.collaborate else {}
        return Reply(tensors, {"loss": loss}, pick(after, personal), letter)

    def _body_steps(
        self, task: Task, params: Tree, data: Data, steps: int, c: Tensor, lam: Tensor
    ) -> tuple[Tree, Tensor]:
        """Do step 6. Returns (params, loss at the last gradient, without R_i)."""
        last = torch.zeros(())
        for turn in turns(steps, data, self.batch_size):
            features, pull_back, buffers = task.body_vjp(params, turn.batch.x)
            g_features, loss = grad(_aligned, has_aux=True)(features, task, params, turn.batch, c, lam)
            (g,) = pull_back(g_features)
            stepped = descend(pick(params, task.body), g, self.eta_f)
            params, last = turn.kept({**params, **stepped, **buffers}, params), turn.kept_value(loss, last)
        return params, last

    def passes(self, size: int, rnd: Round) -> Passes:
        body = sgd_passes(size, rnd.steps, self.batch_size)
        head = sgd_passes(size, length(self.head_steps), self.batch_size)
        n, s = body.body_forwards, head.head_steps * head.batch / body.batch
        return Passes(body.batch, body_forwards=n, body_backwards=n, head_steps=s, frozen_head=n, whole_features=2)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        return {**shift(shared, update.tensors), **pick(update.tensors, (".pc", ".p"))}, memory

    def letter_form(self, task: Task) -> Tree:
        zeros = _zeros(task)
        return {**pick(task.initial, task.head), ".h": zeros, ".V": zeros[0, 0]} if self.collaborate else {}

    def exchange(self, letters: Tree, rnd: Round) -> Tree:
        if not self.collaborate:
            return {}
        h, V = (letters[name].cpu().to(torch.float64) for name in (".h", ".V"))
        h = (h - h.mean(0)).flatten(1)  # only differences count, and small numbers round less
        M = h @ h.T
        bias = M.diagonal()[:, None, None] - M[:, :, None] - M[:, None, :] + M  # (r, r, r): <h_i - h_j, h_i - h_k>
        a = torch.stack([least_on_simplex(own + V.clamp(min=0).diag()) for own in bias])
        heads = {name: value for name, value in letters.items() if name not in (".h", ".V")}
        return {name: torch.tensordot(a.to(value), value, dims=1) for name, value in heads.items()}

    def read(self, task: Task, personal: Tree, letter: Tree, rnd: Round) -> Tree:
        return {**personal, **letter}

    def adapt_head(self, task: Task, shared: Tree, personal: Tree, features: Tensor, data: Data, steps: int) -> Tree:
        """Do step 5."""
        head = pick(personal, task.head)
        for turn in turns(steps, data._replace(x=features), self.batch_size):
            head = turn.kept(head_descent(task, head, turn.batch.x, turn.batch, 1, self.eta_g), head)
        return head


def _zeros(task: Task) -> Tensor:
    """Return zeros (C, d), for C classes and d features."""
    return task.initial[task.params[0]].new_zeros(task.num_outputs, task.num_features)


def _aligned(features: Tensor, task: Task, params: Tree, data: Data, c: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """Return (ℓ_i + λ R_i, ℓ_i) as a function of the features."""
    loss = task.head_loss(params, features, data)
    return loss + lam * distance_to(c, task, features, data), loss
