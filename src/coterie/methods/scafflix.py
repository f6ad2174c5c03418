"""Scafflix: explicit mixtures, as in FLIX, trained with local steps and control variates, as in i-Scaffnew.

K. Yi, L. Condat, P. Richtárik, "Explicit Personalization and Local Training: Double Communication Acceleration in
Federated Learning", TMLR, Algorithm 1, for (FLIX): min (1/n) Σ_i f_i(α_i x + (1 − α_i) x_i*), f_i = ℓ_i + (μ/2) ||x||².

    Client i, once, before its first visit:
    1.  x_i* ← argmin f_i (unless α_i = 1), h_i ← 0, and γ_i

    Server, round t:
    2.  draw the number of steps until a coin shows heads, which it does with probability p; draw a cohort, or take
        everyone; send it the model x and that number
    3.  x ← Σ_i c_i x_i / Σ_i c_i, c_i = α_i²/γ_i, the sums over the cohort; send it x again

    Client i, whose model is x̃_i = α_i x_i + (1 − α_i) x_i*:
    4.  x_i ← x;  so many times:  x_i ← x_i − (γ_i/α_i) (∇ f_i(x̃_i) − h_i), on the next minibatch
    5.  send c_i (x_i − x) and c_i
    6.  once x is there:  h_i ← h_i + (p α_i/γ_i) (x − x_i)

A round is one aggregation: the paper's iterations between two of them are the steps of 4. Steps are done on x̃_i, which
moves by −γ_i (∇ f_i(x̃_i) − h_i): then 5 is (α_i/γ_i) (x̃_i − what it was), 6 adds (p/γ_i) (what x makes of x̃_i − x̃_i),
and nothing is divided by α_i. A client with α_i = 0 stays at its own optimum, and others learn nothing from it.
By theory γ_i = 1/L_i and p = sqrt(min_i γ_i μ_i), for exact gradients of everyone (Theorem 4). Of a cohort, 6 leaves
Σ_i α_i h_i as it was, so that it stays 0 over all clients; the theorem is about everyone.
Deviation: minibatches are parts of a shuffle, fresh in each round; the paper's are drawn independently.
With α_i = 1 this is i-Scaffnew.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self, cast

from coterie.core.fields import BatchSize, Regularizer
from coterie.core.method import Calibrates, Client, Data, Prepares, Receives, Reply, Round, Task, Tree, Update, settings
from coterie.core.steps import Pull, control, fine_tuned, local_sgd, travelling
from coterie.core.steps.control import MixingWeights
from coterie.core.steps.convex import (
    CoinChance,
    OptimumBatch,
    OptimumEpochs,
    OptimumRate,
    OptimumSolver,
    OptimumStart,
    OptimumTolerance,
    Search,
    StepSizes,
    theory,
)
from coterie.core.tree import displacement, pick


@settings
class Scafflix(Prepares, Calibrates, Receives):
    """Each client's model mixes a shared one with its own optimum; many local steps between aggregations."""

    gradients_per_step = 1
    users = "equal"

    alpha: MixingWeights = 0.5
    gamma: StepSizes = 0.1
    p: CoinChance = 0.2
    mu: Regularizer = 0.0
    batch_size: BatchSize = 0
    optimum_solver: OptimumSolver = "gd"
    optimum_rate: OptimumRate = 0.1
    optimum_tolerance: OptimumTolerance = 1e-6
    optimum_epochs: OptimumEpochs = 50
    optimum_batch: OptimumBatch = 0
    optimum_start: OptimumStart = 1.0

    def init_personal(self, task: Task, client: Client) -> Tree:
        own = {**control.mixing(task, self.alpha, client), **control.steps_by_name(task, self.gamma, client)}
        return {**task.personal_buffers(), **control.zero(task), **own}

    def prepare(self, task: Task, personal: Tree, data: Data) -> Tree:
        stepped = control.with_step(task, personal, data, self.mu, self.gamma)
        return control.with_optimum(task, stepped, data, self.mu, Search.of(self))

    @property
    def is_calibrated(self) -> bool:
        return self.p != "optimal"

    def measure(self, task: Task, data: Data) -> dict[str, float]:
        return theory(task, data, self.mu, self.gamma)

    def calibrate(self, measured: Mapping[str, Mapping[str, float]]) -> Self:
        return replace(self, p=control.optimal_p(self.gamma, measured))

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=control.steps_to_coin(cast(float, self.p), rnd))

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        alpha, gamma = personal[".alpha"], personal[".gamma"]
        start, h = control.mixture(task, shared, control.at_rest(task, personal)), control.variate(task, personal)
        after, loss = local_sgd(task, start, data, rnd.steps, gamma, self.batch_size, pull=Pull(self.mu), control=h)
        moved = {name: alpha / gamma * value for name, value in displacement(after, pick(start, task.params)).items()}
        tensors = {**moved, **travelling(task, shared, after)}
        return Reply(tensors, {"inverse_step": alpha**2 / gamma, "loss": loss}, {**personal, **after})

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        c = update.numbers["inverse_step"].clamp(min=1e-30)  # if all clients have alpha 0, nothing moves
        return control.weighted_move(task, shared, update, c), memory

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        now = control.mixture(task, shared, control.at_rest(task, personal))
        return control.moved(task, personal, now, cast(float, self.p) / personal[".gamma"])

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return control.mixture(task, shared, personal)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        gamma, start = personal[".gamma"], control.mixture(task, shared, personal)
        return {**personal, **fine_tuned(task, start, data, steps, gamma, self.batch_size, pull=Pull(self.mu))}
