"""The verbs that methods share: local steps of a client, steps of a server."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad, grad_and_value
from torch.nn.functional import embedding

from coterie.streams import bits
from coterie.task import Data, Task
from coterie.tree import Tree, descend, pick


def minibatch(data: Data, size: int, step: int) -> Data:
    """The batch of local step 0, 1, ...: each epoch a fresh shuffle, its last batch as short as it comes out.

    A short batch is filled up with the epoch's first examples, masked: BatchNorm sees them, the loss does not. Size 0,
    or one that the examples do not fill, is all of them. Tensors only, so that it runs under vmap, where N counts
    padding and n does not.
    """
    N = data.mask.shape[0]
    if size == 0 or size >= N:
        return data
    n = data.mask.sum()
    epoch_steps = (n + size - 1) // size
    rank = bits(data.stream, torch.div(step, epoch_steps, rounding_mode="floor"), torch.arange(N, device=n.device))
    order = torch.where(data.mask, rank, torch.iinfo(torch.int64).max).argsort()
    place = (step % epoch_steps) * size + torch.arange(size, device=n.device)
    chosen = order[place % n]
    x = embedding(chosen, data.x.flatten(1)).reshape(size, *data.x.shape[1:])  # data.x[chosen], but quick under vmap
    return data._replace(x=x, y=data.y[chosen], mask=place < n)


def local_sgd(
    task: Task, params: Tree, data: Data, rates: Sequence[float], over: Sequence[str], batch: int = 0
) -> tuple[Tree, Tensor]:
    """One gradient step for each rate on the parameters named in `over`: (params, loss at the last gradient)."""
    loss = torch.zeros(())
    for step, rate in enumerate(rates):
        examples = minibatch(data, batch, step)

        def objective(trained: Tree, rest: Tree = params, examples: Data = examples) -> tuple[Tensor, Tree]:
            return task.loss({**rest, **trained}, examples)

        g, loss, buffers = gradient(objective, pick(params, over))
        params = {**params, **descend(pick(params, over), g, rate), **buffers}
    return params, loss


def gradient(objective: Callable[[Tree], tuple[Tensor, Tree]], at: Tree) -> tuple[Tree, Tensor, Tree]:
    """Of objective(tree) = (loss, whatever else comes out): (gradient, loss, whatever else).

    Where no torch.func transform is at work, plain autograd gives the same in a sixth less time.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None:
        g, (loss, rest) = grad_and_value(objective, has_aux=True)(at)
        return g, loss, rest
    leaves = {name: value.detach().requires_grad_() for name, value in at.items()}
    with torch.enable_grad():
        loss, rest = objective(leaves)
    g = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, g, strict=True)), loss.detach(), {name: value.detach() for name, value in rest.items()}


def head_descent(task: Task, head: Tree, features: Tensor, data: Data, steps: int, rate: float) -> Tree:
    """Gradient descent on the head alone, on features that do not change."""
    if task.head_is_linear:
        return _linear_head_descent(head, features, data, steps, rate)
    for _ in range(steps):
        head = descend(head, grad(task.head_loss)(head, features, data), rate)
    return head


def _linear_head_descent(head: Tree, features: Tensor, data: Data, steps: int, rate: float) -> Tree:
    """The same for one linear layer, whose gradient is known: (softmax - labels)ᵀ features / N.

    Features lie as (M, N): so, both products run about twice as fast as the other way round.
    """
    (weight, W), *bias = head.items()
    phi = features.T.contiguous()
    share = data.mask / data.mask.sum(dtype=phi.dtype)
    labels = (data.y == torch.arange(len(W), device=phi.device)[:, None]) * share  # (K, N)
    b = bias[0][1][:, None] if bias else None
    for _ in range(steps):
        outputs = W @ phi if b is None else W @ phi + b
        G = outputs.softmax(0) * share - labels
        W = W - rate * (G @ phi.T)
        b = b if b is None else b - rate * G.sum(1, keepdim=True)
    return {weight: W} if b is None else {weight: W, bias[0][0]: b[:, 0]}


def adam_memory(params: Mapping[str, Tensor]) -> Tree:
    """Adam's first and second moments, and its step count."""
    moments = {f"{moment}.{name}": torch.zeros_like(value) for moment in "mv" for name, value in params.items()}
    return {**moments, "t": torch.zeros((), dtype=torch.int64)}


def adam(params: Tree, memory: Tree, gradient: Mapping[str, Tensor], rate: float) -> tuple[Tree, Tree]:
    """One step of Adam (Kingma and Ba, 2015) with its usual constants: (params, memory)."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-8
    t = memory["t"] + 1
    after, kept = {}, {"t": t}
    for name, value in params.items():
        m = beta1 * memory[f"m.{name}"] + (1 - beta1) * gradient[name]
        v = beta2 * memory[f"v.{name}"] + (1 - beta2) * gradient[name] ** 2
        after[name] = value - rate * (m / (1 - beta1 ** int(t))) / ((v / (1 - beta2 ** int(t))).sqrt() + epsilon)
        kept |= {f"m.{name}": m, f"v.{name}": v}
    return after, kept
