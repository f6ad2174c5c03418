"""FedAMP: each client has a cloud model of its own, to which similar clients contribute most.

Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang, "Personalized Cross-Silo Federated Learning on Non-IID
Data", AAAI 2021, Algorithm 1. The objective is Σ_i F_i(w_i) + λ Σ_{i<j} A(||w_i − w_j||²), with A(x) = 1 − e^(−x/σ), so
that clients attract each other, and the more the closer they are.

    Client i, with its own model w_i and its cloud model u_i (both at first the initial model):
    1.  w_i ← an approximate minimizer of F_i(w) + λ/(2α) ||w − u_i||²: τ gradient steps of rate η from w_i
    2.  send the letter w_i; keep it, as the model that is used

    Server, each round:
    3.  for each client i:  u_i ← Σ_j ξ_ij w_j, sent to i alone, where ξ_ij = α A'(||w_i − w_j||²) for j ≠ i, and
        ξ_ii = 1 − Σ_{j≠i} ξ_ij

The paper requires that α is so small that no ξ_ii is negative, which is an error here. With I clients, α ≤ σ/(I − 1) is
always small enough. With λ = 0 this is local training. If σ grows and α does not, all u_i tend to w_i. If α grows with
it, all ξ_ij with j ≠ i tend to α/σ: with α = σ/I, each u_i tends to the mean of all models.

`attention = "cosine"` is HeurFedAMP, the paper's heuristic for deep networks, whose distances say little:

    3'. u_i ← Σ_j ξ_ij w_j, where ξ_ii is the same for all i, and
        ξ_ij = (1 − ξ_ii) e^(σ cos(w_i, w_j)) / Σ_{h≠i} e^(σ cos(w_i, w_h)) for j ≠ i

It has no objective. A larger σ prefers similar models more, and not less as above. With ξ_ii = 1 each u_i is w_i. If σ
tends to 0, the others weigh the same: with ξ_ii = 1/I, each u_i tends to the mean of all models. A client that is alone
has u_i = w_i. α only acts in step 1, as λ/α.

The method is made for few organisations, and all take part in every round. If one does not answer, it keeps its u_i,
and the others are mixed without it. There is no shared model: a new user does step 1 as all clients do in round 1, from
and near the initial model. The server sees the model of every single client.
Deviation: in the paper the server's step comes first in a round. It is the same, because all w_i are equal at first.
Deviation: the paper lets α decrease over the rounds, and leaves open where step 1 starts. Buffers stay with the client.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.fields import BatchSize, LocalRate, LocalSteps, Rate
from coterie.core.method import Client, Data, Exchanges, Reply, Round, Task, Tree, settings
from coterie.core.steps import Pull, local_sgd
from coterie.core.tree import pick, under, within
from coterie.errors import UserError

Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1)]


@settings
class FedAMP(Exchanges):
    """No shared model: each client trains its own, near a mix of all models in which similar ones weigh most."""

    labels = "global"
    everyone = True
    gradients_per_step = 1

    tau: LocalSteps = 50
    eta: LocalRate = 0.007
    lam: Rate = 0.02
    """λ: strength of the attraction between clients. The pull towards the cloud model has strength lam / alpha."""
    alpha: Positive = 0.02
    """Step size of the server. Another client's model has at most the weight alpha / sigma."""
    sigma: Positive = 1.0
    """Squared distance between two models at which they weigh 1/e of what equal models weigh for each other. With
    attention = "cosine", factor of the cosine in the exponent: similar models weigh the more, the larger it is."""
    attention: Literal["distance", "cosine"] = "distance"
    """What the weights of other clients depend on: the distance between models, or the cosine of their angle, which is
    HeurFedAMP."""
    own: Weight = 0.5
    """ξ_ii of HeurFedAMP: weight of a client's own model in its cloud model. attention = "distance" does not use it."""
    batch_size: BatchSize = 0

    def init_shared(self, task: Task) -> Tree:
        return {}

    def init_personal(self, task: Task, client: Client) -> Tree:
        return {**task.initial, **under("u", self.letter_form(task))}

    def plan(self, rnd: Round) -> Round:
        if self.eta * self.lam >= 2 * self.alpha:
            raise UserError(
                f"method.eta * lam / alpha = {self.eta * self.lam / self.alpha:.3g} must be less than 2, or else local "
                "steps move away from the cloud model; lower method.eta or method.lam"
            )
        return super().plan(rnd)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        after, loss = self._step(task, personal, data, rnd.steps)
        return Reply({}, {"loss": loss}, after, pick(after, task.params))

    def _step(self, task: Task, personal: Tree, data: Data, steps: int) -> tuple[Tree, Tensor]:
        """Do step 1."""
        pull = Pull(self.lam / self.alpha, within("u", personal))
        return local_sgd(task, personal, data, steps, self.eta, self.batch_size, pull=pull)

    def letter_form(self, task: Task) -> Tree:
        return pick(task.initial, task.params)

    def exchange(self, letters: Tree, rnd: Round) -> Tree:
        xi = self._by_distance(letters, rnd) if self.attention == "distance" else self._by_cosine(letters)
        return {name: torch.tensordot(xi.to(value), value, dims=1) for name, value in letters.items()}

    def _by_distance(self, letters: Tree, rnd: Round) -> Tensor:
        """Return the ξ_ij (r, r) of step 3."""
        apart = torch.stack([_square(value) for value in letters.values()]).sum(0)  # (r, r): ||w_i - w_j||²
        xi = (self.alpha / self.sigma) * torch.exp(-apart / self.sigma)
        xi = xi - xi.diag().diag()
        own = 1 - xi.sum(1)
        if bool((own < 0).any()):
            raise UserError(
                f"method.alpha = {self.alpha} is too large for method.sigma = {self.sigma}: in round {rnd.index} the "
                f"weights of other clients sum to {float(1 - own.min()):.3g} for a client, but must not exceed 1; "
                f"{self.sigma / max(len(own) - 1, 1):.3g} is always small enough"
            )
        return xi + own.diag()

    def _by_cosine(self, letters: Tree) -> Tensor:
        """Return the ξ_ij (r, r) of step 3'."""
        flat = [value.reshape(len(value), -1) for value in letters.values()]
        products = torch.stack([value @ value.T for value in flat]).sum(0)
        lengths = products.diag().sqrt().clamp(min=torch.finfo(products.dtype).tiny)  # a model may be zero
        alone = torch.eye(len(products), dtype=torch.bool, device=products.device)
        cos = (products / lengths / lengths[:, None]).masked_fill(alone, -torch.inf)
        others = (1 - self.own) * (self.sigma * cos).softmax(1).nan_to_num()  # there may be no others
        return others + (1 - others.sum(1)).diag()

    def read(self, task: Task, personal: Tree, letter: Tree, rnd: Round) -> Tree:
        return {**personal, **under("u", letter)}

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return self._step(task, personal, data, steps)[0]


def _square(value: Tensor) -> Tensor:
    """Return the squared distances (r, r) between the rows of a tensor. Those of equal rows are exactly zero."""
    return torch.stack([((value - row) ** 2).reshape(len(value), -1).sum(1) for row in value])
