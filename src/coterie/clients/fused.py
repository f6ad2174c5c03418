"""The whole cohort through the body once, for methods whose body stays fixed during a round.

Features of all examples are computed in one pass and kept with their graph; the heads are trained on them in batched
products; then *one* backward pass of Σ_i w_i ℓ_i gives the aggregate directly. Nobody's own gradient is ever formed.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from coterie.clients import client
from coterie.clients.engine import Replies
from coterie.clients.setup import Setup
from coterie.clients.vmap import Vmap, groups
from coterie.core.method import Round, Tree
from coterie.core.tree import displacement, finite_rows, num_bytes, stack, unstack
from coterie.settings import settings


@settings
class Fused(Vmap):
    """the cohort through the shared body at once, then all heads together"""

    def unfit(self, setup: Setup) -> str | None:
        if not setup.method.fixed_body:
            return "the method moves the body during a round"
        if setup.task.mixes_examples:
            return "the model mixes the examples of a batch (BatchNorm), so clients cannot share one"
        if not setup.aggregate.takes_sums:
            return "the aggregation rule must see the single messages"
        return super().unfit(setup)

    def local_updates(
        self,
        setup: Setup,
        shared: Tree,
        clients: Sequence[int],
        personal: Sequence[Tree],
        weights: Tensor,
        rnd: Round,
        scored: bool,
    ) -> Replies:
        replies = Replies(setup.aggregate.start())
        for part in self._fitting(setup, clients):
            chosen = clients[part], personal[part], weights[part]
            replies.merge(_at_once(setup, shared, *chosen, rnd))
        if scored:
            start, answered, mine = time.perf_counter(), list(replies.personal), list(replies.personal.values())
            replies.scores = self.answers(setup, client.score, shared, answered, mine, split="test")
            replies.scoring_seconds = time.perf_counter() - start
        return replies

    def _fitting(self, setup: Setup, clients: Sequence[int]) -> Iterator[slice]:
        """Runs of clients whose examples fit into the memory together."""
        limit = self.memory * 1e9 / setup.task.example_bytes
        start, filled = 0, 0
        for place, size in enumerate(setup.federation.sizes()[list(clients)].tolist()):
            if filled + size > limit and place > start:
                yield slice(start, place)
                start, filled = place, 0
            filled += size
        yield slice(start, len(clients))


def _at_once(
    setup: Setup, shared: Tree, clients: Sequence[int], personal: Sequence[Tree], weights: Tensor, rnd: Round
) -> Replies:
    task, replies = setup.task, Replies(setup.aggregate.start())
    alike = groups(setup, setup.federation.sizes()[list(clients)].tolist(), [personal])
    batches = [setup.gather([clients[place] for place in group], "train", rnd.index) for group in alike]
    x = [_without_padding(data.x, data.mask) for data in batches]
    features, pull_back, buffers = task.body_vjp({**task.personal_buffers(), **shared}, _joined(x))

    on_features = vmap(partial(setup.method.on_features, task, rnd=rnd))
    g_features: list[Tensor] = []
    message: Tree = {}
    for group, data, own in zip(alike, batches, torch.split(features, [len(part) for part in x]), strict=True):
        before = stack([personal[place] for place in group])
        g, sent, after = on_features(before, _padded(own, data.mask), data)
        w = weights[group].to(g)
        g_features.append(_without_padding(g.mul_(w.reshape(-1, *[1] * (g.ndim - 1))), data.mask))
        message = {name: message.get(name, 0) + torch.tensordot(w, value, dims=1) for name, value in sent.items()}

        answered = finite_rows({"features": g, **sent, **after}, len(group)).tolist()
        replies.refused += [clients[place] for place, ok in zip(group, answered, strict=True) if not ok]
        mine = unstack({**before, **after}, len(group))
        replies.personal |= {clients[place]: tree for place, tree in zip(group, mine, strict=True)}
    if replies.refused:
        return _without(replies.refused, setup, shared, clients, personal, weights, rnd)

    (gradient,) = pull_back(_joined(g_features))
    weight = float(weights.sum())
    travelling = displacement(buffers, {name: shared[name] for name in task.buffers if name in shared})
    message |= {**gradient, **{name: weight * moved for name, moved in travelling.items()}}
    replies.total.add_sum(weight, message)
    replies.bytes_up = len(clients) * num_bytes(message)
    return replies


def _without(
    refused: list[int],
    setup: Setup,
    shared: Tree,
    clients: Sequence[int],
    personal: Sequence[Tree],
    weights: Tensor,
    rnd: Round,
) -> Replies:
    """The same for the others alone: what is not finite would spoil the common backward pass."""
    places = [place for place, who in enumerate(clients) if who not in refused]
    if places:
        others = [clients[place] for place in places], [personal[place] for place in places], weights[places]
        replies = _at_once(setup, shared, *others, rnd)
        replies.bytes_up += replies.bytes_up // len(places) * len(refused)
    else:
        replies = Replies(setup.aggregate.start())
    replies.refused = refused
    return replies


def _without_padding(stacked: Tensor, mask: Tensor) -> Tensor:
    """(C, N, ...) to (examples, ...)"""
    return stacked.flatten(0, 1) if mask.all() else stacked[mask]


def _padded(flat: Tensor, mask: Tensor) -> Tensor:
    """The reverse, with zeros as padding."""
    if mask.all():
        return flat.reshape(*mask.shape, *flat.shape[1:])
    stacked = flat.new_zeros(*mask.shape, *flat.shape[1:])
    stacked[mask] = flat
    return stacked


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
