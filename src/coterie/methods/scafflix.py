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
With α_i = 1 this is i-Scaffnew.

`start`: With "optimum", 4 starts from x_i ← x_i* in round 1. With "gradient", round 1 has one step and p = 1, which
gives h_i = ∇ f_i(x̃_i) − (α_i/γ_i) v, where v makes Σ_i α_i h_i = 0. In the norm of Ψ, no admissible h is closer to the
gradients.
Deviation: the paper bounds Ψ^0 for h_i = ∇ f_i(x̃_i), whose sum is not 0, so that x would not converge to x*. The bound
also holds for the closest admissible h. Algorithm 1 asks for Σ_i h_i = 0, but by Appendix C it is Σ_i α_i h_i.

`gamma`: With "1/A", γ_i = min(1/A_i, ε μ_min / (2 C_i)) for minibatches (Corollary 6); p = "optimal" completes it.
Deviation: C_i is that of the initial model, because x̃_i* is not known before training.
With "1/hessian", γ_i = 1/L̂_i, where L̂_i is the largest absolute eigenvalue of the Hessian of f_i at the first x̃_i.
With "adaptive", 4 also raises L̂_i to ||∇ f_i(y') − ∇ f_i(y)|| / ||y' − y||, where y and y' are x̃_i before and after it.
The paper leaves adaptive steps open. γ_i changes between rounds only, so Σ_i α_i h_i stays 0. Theorem 4 needs fixed
γ_i ≤ 1/L_i, and L̂_i ≤ L_i: so it holds from the round on in which L̂_i is L_i. For quadratic f_i that is the first.

`sampling`: With "independent", minibatches are drawn as theory assumes.
Deviation: by default they are parts of a shuffle, fresh in each round.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self, cast

from coterie.core.fields import BatchSize, Rate, Regularizer
from coterie.core.method import Calibrates, Client, Data, Prepares, Receives, Reply, Round, Task, Tree, Update, settings
from coterie.core.passes import Passes
from coterie.core.steps import Pull, control, convex, fine_tuned, local_sgd, travelling
from coterie.core.steps.sampling import Sampling, independent_sgd, sampled_passes
from coterie.core.steps.step_rule import StepRule
from coterie.core.tree import displacement, pick, within


@settings
class Scafflix(Prepares, Calibrates, Receives):
    """Each client's model mixes a shared one with its own optimum; many local steps between aggregations."""

    users = "equal"

    alpha: control.MixingWeights = 0.5
    gamma: convex.StepSizes | Literal["1/A", "adaptive"] = 0.1
    """Learning rate: one number for all clients, one by client name, or from the data of each client. "1/L" and
    "1/trace" are from theory for linear models, and so is "1/A" for minibatches. "1/hessian" is an estimate for any
    model, and "adaptive" corrects it after each round."""
    p: convex.CoinChance = 0.2
    mu: Regularizer = 0.0
    start: Literal["zero", "gradient", "optimum"] = "zero"
    """Initial state. With "zero", all clients start from x with h_i = 0. With "gradient", the first round has one step
    and brings each h_i close to the client's gradient. With "optimum", clients start from their own optima."""
    batch_size: BatchSize = 0
    sampling: Sampling = "shuffle"
    epsilon: Rate = 0.0
    """Target accuracy Ψ, by which minibatches limit the step sizes if gamma is "1/A"; 0 does not limit them."""
    mu_min: Rate = 0.0
    """Smallest strong convexity of all clients, for epsilon; 0 computes it from their data."""
    optimum_solver: convex.OptimumSolver = "gd"
    optimum_rate: convex.OptimumRate = 0.1
    optimum_tolerance: convex.OptimumTolerance = 1e-6
    optimum_epochs: convex.OptimumEpochs = 50
    optimum_batch: convex.OptimumBatch = 0
    optimum_start: convex.OptimumStart = 1.0

    def init_personal(self, task: Task, client: Client) -> Tree:
        own = {**control.mixing(task, self.alpha, client), **control.steps_by_name(task, self.gamma, client)}
        return {**task.personal_buffers(), **control.zero(task), **own}

    def prepare(self, task: Task, personal: Tree, data: Data) -> Tree:
        best = control.with_optimum(task, personal, data, self.mu, convex.Search.of(self))
        return StepRule.of(self).chosen(task, best, data, control.mixture(task, task.initial, best))

    @property
    def is_calibrated(self) -> bool:
        return StepRule.of(self).is_calibrated

    def measure(self, task: Task, data: Data) -> dict[str, float]:
        return StepRule.of(self).measure(task, data)

    def calibrate(self, measured: Mapping[str, Mapping[str, float]]) -> Self:
        return replace(self, **StepRule.of(self).calibrated(measured))

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=1 if self._tells_gradients(rnd) else control.steps_to_coin(cast(float, self.p), rnd))

    def _tells_gradients(self, rnd: Round) -> bool:
        return self.start == "gradient" and rnd.index == 1

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        alpha, gamma = personal[".alpha"], personal[".gamma"]
        mixed, h = control.mixture(task, shared, control.at_rest(task, personal)), control.variate(task, personal)
        start = {**mixed, **within("optimum", personal)} if self.start == "optimum" and rnd.index == 1 else mixed
        descent = independent_sgd if self.sampling == "independent" else local_sgd
        after, loss = descent(task, start, data, rnd.steps, gamma, self.batch_size, pull=Pull(self.mu), control=h)
        moved = {name: alpha / gamma * value for name, value in displacement(after, pick(mixed, task.params)).items()}
        tensors = {**moved, **travelling(task, shared, after)}
        kept = {**control.watched(task, personal, start, after, data, self.mu), **after}
        return Reply(tensors, {"inverse_step": alpha**2 / gamma, "loss": loss}, kept)

    def passes(self, size: int, rnd: Round) -> Passes:
        watching = 2 if self.gamma == "adaptive" else 0
        return sampled_passes(size, rnd.steps, self.batch_size, self.sampling, watching)

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Update, rnd: Round) -> tuple[Tree, Tree]:
        c = update.numbers["inverse_step"].clamp(min=1e-30)  # if all clients have alpha 0, nothing moves
        return control.weighted_move(task, shared, update, c), memory

    def receive(self, task: Task, shared: Tree, personal: Tree, rnd: Round) -> Tree:
        p = 1.0 if self._tells_gradients(rnd) else cast(float, self.p)
        now = control.mixture(task, shared, control.at_rest(task, personal))
        return control.adapted(control.moved(task, personal, now, p / personal[".gamma"]))

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return control.mixture(task, shared, personal)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        gamma, start = personal[".gamma"], control.mixture(task, shared, personal)
        return {**personal, **fine_tuned(task, start, data, steps, gamma, self.batch_size, pull=Pull(self.mu))}
