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

The client's model answers Σ_m π_im p_m(y|x), or Σ_m π_im of the components' numbers. With M = 1 this is FedAvg. Who is
new, or adapts, repeats 3 and 4 with the components as they are.
Deviation: components must differ at first. All but one are the initial model with the entries of each parameter
permuted, as if drawn anew. Step 3 is a pass in training mode.
"""

from functools import partial

import torch
from torch import Tensor

from coterie.core.data import Inputs
from coterie.core.method import Client, Count, Data, Length, Method, Passes, Rate, Round, Size, Task, Tree, settings
from coterie.core.steps import gradient, sgd_passes, turns, weighted_loss
from coterie.core.tree import descend, displacement, like, pick, shift


@settings
class FedEM(Method):
    """Shared components, personal mixtures of them, by expectation maximization. The exported model is the heaviest."""

    components: Count = 3
    """M."""
    tau: Length = 50
    """Local steps on each component, or "2 epochs" of the client's examples."""
    eta: Rate = 0.007
    """Rate of the local steps."""
    batch_size: Size = 0
    """Examples a step; 0 is all of the client's."""

    def init_shared(self, task: Task) -> Tree:
        shared = task.shared_model()
        for m in range(1, self.components):
            random, model = torch.Generator().manual_seed(m), task.shared_model()
            for name, old in pick(model, task.body + task.head).items():
                order = torch.randperm(old.numel(), generator=random).to(old.device)
                model |= like({name: old}, {name: old.flatten()[order].view_as(old)})
            shared |= _labelled(m, model)
        return shared

    def init_personal(self, task: Task, client: Client) -> Tree:
        pi = task.initial[(task.body + task.head)[0]].new_full((self.components,), 1 / self.components)
        buffers = [_labelled(m, task.personal_buffers()) for m in range(self.components)]
        return {"pi": pi, **{name: value for own in buffers for name, value in own.items()}}

    def plan(self, rnd: Round) -> Round:
        return rnd.announce(steps=self.tau)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> tuple[Tree, Tree]:
        (q, after), total = self._expectation(task, shared, personal, data, 1), torch.zeros(())
        over, places = task.body + task.head, data._replace(y=torch.arange(len(data.y), device=data.y.device))
        for m, params in enumerate(_components(task, {**shared, **personal}, self.components, data)):
            params["loss"] = torch.zeros(())
            for turn in turns(rnd.steps, places, self.batch_size):
                share, batch = q[turn.batch.y, m], turn.batch._replace(y=data.y[turn.batch.y])
                g, loss, buffers = gradient(partial(weighted_loss, task, params, batch, share), pick(params, over))
                params = turn.kept(params | descend(pick(params, over), g, self.eta) | buffers | {"loss": loss}, params)
            after, total = {**after, **_labelled(m, params)}, total + params["loss"]
        return {**displacement(after, shared), "loss": total}, pick(after, personal)

    def _expectation(self, task: Task, shared: Tree, personal: Tree, data: Data, times: int) -> tuple[Tensor, Tree]:
        """Steps 3 and 4, so often: q (N, M), and π with the buffers that the passes leave."""
        found = [task.losses(own, data) for own in _components(task, shared | personal, self.components, data)]
        losses, pi = torch.stack([each for each, _ in found], 1), personal["pi"]
        for _ in range(times):
            q = (pi.log() - losses).softmax(1)
            pi = torch.where(data.mask[:, None], q, 0).sum(0) / data.mask.sum()
        return q, {"pi": pi, **{k: v for m, (_, left) in enumerate(found) for k, v in _labelled(m, left).items()}}

    def passes(self, size: int, rnd: Round) -> Passes:
        steps = sgd_passes(size, rnd.steps, self.batch_size, each=self.components)
        return steps._replace(whole_forwards=self.components)

    def weights(self, sizes: Tensor, rnd: Round) -> Tensor:
        return sizes / sizes.sum()

    def server_update(self, task: Task, shared: Tree, memory: Tree, update: Tree, rnd: Round) -> tuple[Tree, Tree]:
        return shift(shared, update), memory

    def local_shared(self, shared: Tree, message: Tree) -> Tree:
        return shift(shared, message)

    def personal_params(self, task: Task, shared: Tree, personal: Tree) -> Tree:
        return _components(task, {**shared, **personal}, self.components)[int(personal["pi"].argmax())]

    def predict(self, task: Task, shared: Tree, personal: Tree, x: Inputs) -> Tensor:
        models, pi = _components(task, {**shared, **personal}, self.components), personal["pi"]
        outputs = torch.stack([task.outputs(model, x) for model in models], -1)
        return outputs @ pi if task.objective.answers is None else (outputs.log_softmax(-2) + pi.log()).logsumexp(-1)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return pick(self._expectation(task, shared, personal, data, steps)[1], personal) if steps else personal


def _labelled(m: int, tree: Tree) -> Tree:
    return {f"m{m}.{name}": value for name, value in tree.items()} if m else tree


def _components(task: Task, tree: Tree, M: int, data: Data | None = None) -> list[Tree]:
    """For a pass over data, which changes buffers, these are the client's own: batched, where many clients are."""
    models = [{name: tree[f"m{m}.{name}" if m else name] for name in task.initial} for m in range(M)]
    if data is None:
        return models
    return [model | {name: model[name] + 0 * data.stream for name in task.buffers} for model in models]
