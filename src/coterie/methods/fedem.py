"""FedEM: each client a mixture of shared components.

O. Marfoq, G. Neglia, A. Bellet, L. Kameni, R. Vidal, "Federated Multi-Task Learning under a Mixture of Distributions",
NeurIPS 2021, Algorithm 1.

    Server, round t:
    1.  draw a cohort; send it the components θ_1 .. θ_M
    2.  θ_m ← Σ_i (N_i / Σ_j N_j) θ_im, the sums over the cohort, for each m

    Client i, with its own mixture weights π_i (at first all 1/M):
    3.  q_nm ← π_im exp(−ℓ_n(θ_m)), divided by their sum over m, for each example n
    4.  π_im ← the mean of the q_nm over its examples
    5.  θ_im ← θ_m;  τ times:  θ_im ← θ_im − η ∇ (1/N_i) Σ_n q_nm ℓ_n(θ_im) on the next minibatch, for each m
    6.  send the θ_im − θ_m; keep π_i

The client's model answers Σ_m π_im p_m(y|x), or Σ_m π_im of the components' numbers. With M = 1 this is FedAvg. To
adapt, a client repeats steps 3 and 4 with the components as they are.
Deviation: components must differ at first. All but one are the initial model with the entries of each parameter
permuted, as if drawn again. Step 3 is a pass in training mode.
"""

from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from coterie.core.fields import BatchSize, LocalRate, LocalSteps
from coterie.core.method import Client, Data, Inputs, Method, Passes, Reply, Round, Task, Tree, settings, sgd_passes
from coterie.core.steps import gradient, turns, weighted_loss
from coterie.core.tree import descend, displacement, like, pick, under, within


@settings
class FedEM(Method):
    """Shared components, and a personal mixture of them for each client. The exported model is the heaviest one."""

    components: Annotated[int, Field(ge=1, le=1000)] = 3
    """M: number of components."""
    tau: LocalSteps = 50
    eta: LocalRate = 0.007
    batch_size: BatchSize = 0

    def init_shared(self, task: Task) -> Tree:
        shared = task.shared_model()
        for m in range(1, self.components):
            random, model = torch.Generator().manual_seed(m), task.shared_model()
            for name, old in pick(model, task.params).items():
                order = torch.randperm(old.numel(), generator=random).to(old.device)
                model |= like({name: old}, {name: old.flatten()[order].view_as(old)})
            shared |= _component(m, model)
        return shared

    def init_personal(self, task: Task, client: Client) -> Tree:
        pi = task.initial[task.params[0]].new_full((self.components,), 1 / self.components)
        personal = {".pi": pi}
        for m in range(self.components):
            personal |= _component(m, task.personal_buffers())
        return personal

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        q, after = self._expectation(task, shared, personal, data, 1)
        places = data._replace(y=torch.arange(len(data.y), device=data.y.device))
        total = torch.zeros(())
        for m, params in enumerate(_components(task, {**shared, **personal}, self.components, data)):
            last = torch.zeros(())
            for turn in turns(rnd.steps, places, self.batch_size):
                share, batch = q[turn.batch.y, m], turn.batch._replace(y=data.y[turn.batch.y])
                w = pick(params, task.params)
                g, loss, buffers = gradient(partial(weighted_loss, task, params, batch, share), w)
                params = turn.kept({**params, **descend(w, g, self.eta), **buffers}, params)
                last = turn.kept_value(loss, last)
            after, total = {**after, **_component(m, params)}, total + last
        return Reply(displacement(after, shared), {"loss": total}, pick(after, personal))

    def _expectation(self, task: Task, shared: Tree, personal: Tree, data: Data, times: int) -> tuple[Tensor, Tree]:
        """Repeat steps 3 and 4. Returns q (N, M), and π with the buffers that the passes leave."""
        found = [task.losses(own, data) for own in _components(task, {**shared, **personal}, self.components, data)]
        losses, pi = torch.stack([each for each, _ in found], 1), personal[".pi"]
        for _ in range(times):
            q = (pi.log() - losses).softmax(1)
            pi = torch.where(data.mask[:, None], q, 0).sum(0) / data.mask.sum()
        after = {".pi": pi}
        for m, (_, buffers) in enumerate(found):
            after |= _component(m, buffers)
        return q, after

    def passes(self, size: int, rnd: Round) -> Passes:
        steps = sgd_passes(size, rnd.steps, self.batch_size, each=self.components)
        return steps._replace(whole_forwards=self.components)

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return _components(task, {**shared, **personal}, self.components)[int(personal[".pi"].argmax())]

    def predict(self, task: Task, shared: Tree, personal: Tree, x: Inputs) -> Tensor:
        models, pi = _components(task, {**shared, **personal}, self.components), personal[".pi"]
        outputs = torch.stack([task.outputs(model, x) for model in models], -1)
        return outputs @ pi if task.objective.answers is None else (outputs.log_softmax(-2) + pi.log()).logsumexp(-1)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return pick(self._expectation(task, shared, personal, data, steps)[1], personal) if steps else personal


def _component(m: int, tree: Tree) -> Tree:
    """Return a tree of component m under its names in the whole. The first component has the model's own names."""
    return under(f"m{m}", tree) if m else tree


def _components(task: Task, tree: Tree, M: int, data: Data | None = None) -> list[Tree]:
    """Return the M models. With data, their buffers become the client's own, because a pass changes them."""
    models = [pick(within(f"m{m}", tree) if m else tree, task.initial) for m in range(M)]
    if data is None:
        return models
    return [{**model, **{name: model[name] + 0 * data.stream for name in task.buffers}} for model in models]
