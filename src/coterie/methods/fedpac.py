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
Deviation: clients send (n_iy / N_i) c_iy and n_iy / N_i, from which the weights N_i / Σ_j N_j give the same c_y.
Deviation: the authors' code has momentum and weight decay in steps 5 and 6. In step 3 it drops small eigenvalues of the
matrix and small a_j; here step 3 is solved exactly.
Deviation: steps 4 and 5 share one pass through the body, so that with dropout step 5 sees one mask. Buffers follow the
passes of steps 4 and 6. With BatchNorm, the features of steps 4 and 7 are those of one batch with all examples.
"""

from functools import partial

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.functional import embedding

from coterie.core.fields import BatchSize, Length, LocalSteps, Rate
from coterie.core.method import (
    AdaptsHead,
    Client,
    Data,
    Exchanges,
    Passes,
    Reply,
    Round,
    Task,
    Tree,
    Update,
    settings,
    sgd_passes,
)
from coterie.core.objective import Classification
from coterie.core.steps import head_descent, turns
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
        return {**task.shared_body(), ".c": _by_class(task), ".p": _by_class(task)[:, 0]}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.new_head(client.num_outputs, client.seed), **task.personal_buffers()}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        features, _, buffers = task.body_vjp({**shared, **personal}, data.x)
        h, p, square = _class_means(task, features, data)
        known = shared[".p"] > 0
        centroids = torch.where(known[:, None], shared[".c"], h / p.clamp(min=torch.finfo(p.dtype).tiny)[:, None])
        head = self.adapt_head(task, shared, personal, features, data, length(self.head_steps))
        start = {**shared, **personal, **buffers, **head}
        after, loss = self._body_steps(task, start, data, rnd.steps, centroids, self.lam * known.any())
        c, p, _ = _class_means(task, task.body_vjp(after, data.x)[0], data)
        letter = {**head, ".h": h, ".V": (square - (h**2).sum()) / _answers(task, data).sum()}
        moved = displacement(after, {name: value for name, value in shared.items() if name not in (".c", ".p")})
        return Reply(
            {**moved, ".c": c, ".p": p}, {"loss": loss}, pick(after, personal), letter if self.collaborate else {}
        )

    def _body_steps(
        self, task: Task, params: Tree, data: Data, steps: int, centroids: Tensor, strength: Tensor
    ) -> tuple[Tree, Tensor]:
        """Do step 6. Returns (params, loss at the last gradient, without R_i)."""
        last = torch.zeros(())
        for turn in turns(steps, data, self.batch_size):
            features, pull_back, buffers = task.body_vjp(params, turn.batch.x)
            slope = partial(_aligned, task, params, turn.batch, centroids, strength)
            g_features, loss = grad(slope, has_aux=True)(features)
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
        sums, p = update.tensors[".c"], update.tensors[".p"]
        c = sums / p.clamp(min=torch.finfo(p.dtype).tiny)[:, None]  # rows of classes that nobody sent are zero
        return {**shift(shared, update.tensors), ".c": c, ".p": p}, memory

    def letter_form(self, task: Task) -> Tree:
        if not self.collaborate:
            return {}
        return {**pick(task.initial, task.head), ".h": _by_class(task), ".V": _by_class(task)[0, 0]}

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


def _by_class(task: Task) -> Tensor:
    """Return zeros (C, d), for C classes and d features."""
    return task.initial[task.params[0]].new_zeros(task.num_outputs, task.num_features)


def _answers(task: Task, data: Data) -> Tensor:
    return task.objective.counted(data.y, data.mask)


def _class_means(task: Task, features: Tensor, data: Data) -> tuple[Tensor, Tensor, Tensor]:
    """Return the class means times the class frequencies (C, d), the frequencies (C,), and the mean of ||f||²."""
    f, y = features.flatten(data.y.ndim).flatten(0, -2), data.y.clamp(min=0).flatten()
    counted = _answers(task, data).flatten().to(f.dtype)
    share = counted / counted.sum()
    p = f.new_zeros(task.num_outputs).index_add(0, y, share)
    h = f.new_zeros(task.num_outputs, f.shape[-1]).index_add(0, y, share[:, None] * f)
    return h, p, (share * (f**2).sum(1)).sum()


def _aligned(
    task: Task, params: Tree, data: Data, centroids: Tensor, strength: Tensor, features: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (ℓ_i + λ R_i, ℓ_i) as a function of the features."""
    loss, counted = task.head_loss(params, features, data), _answers(task, data)
    away = features.flatten(data.y.ndim) - embedding(data.y.clamp(min=0), centroids)
    R = torch.where(counted, (away**2).mean(-1), 0).sum() / counted.sum()
    return loss + strength * R, loss
