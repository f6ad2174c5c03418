"""The whole cohort passes through the body once, for methods whose body stays fixed during a round.

The features of all examples are computed in one pass and kept with their graph. The heads are trained on them in
batched products. Then *one* backward pass of Σ_i w_i ℓ_i gives the aggregate directly, so that no
client's own gradient is formed.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from coterie.aggregate.rule import Sum
from coterie.clients import work
from coterie.clients.engine import Alike, Call, Cohort, Results, reporting, take
from coterie.clients.messages import Names, majority, misfit, not_finite
from coterie.clients.vmap import Vmap, groups
from coterie.clients.workload import Workload
from coterie.core.method import Data, Exchanges, FixedBody, Tree
from coterie.core.steps.dense_body import body_pass
from coterie.core.tree import displacement, finite_rows, num_bytes, stack, unstack
from coterie.settings import settings


@settings
class Fused(Vmap):
    """the cohort through the shared body at once, then all heads together"""

    def unfit(self, load: Workload) -> str | None:
        if not isinstance(load.work.method, FixedBody):
            return "the method moves the body during a round"
        if isinstance(load.work.method, Exchanges):
            return "clients send the server a letter each, and this engine only computes sums over the cohort"
        if load.work.task.mixes_examples:
            return "the model mixes the examples of a batch (BatchNorm), so clients cannot share one"
        if not load.aggregate.takes_sums:
            return "the aggregation rule must see single replies"
        return super().unfit(load)

    def _aggregated(self, load: Workload, cohort: Cohort) -> Results:
        results = Results()
        for part in self._fitting(load, cohort):
            results.merge(_at_once(load, cohort.part(part)))
        for alike in results.replies.values() if cohort.scored else ():
            start = time.perf_counter()
            states = (list(alike.personal.values()),)
            scored = Call(work.score, cohort.shared, list(alike.personal), states, ("test",))
            results.scores |= self.counts(load, scored)
            results.scoring_seconds += time.perf_counter() - start
        return results

    def _fitting(self, load: Workload, cohort: Cohort) -> Iterator[range]:
        """Yield runs of clients whose examples fit into memory together."""
        limit = self.memory * 1e9 / load.work.probe.example_bytes
        start, filled = 0, 0
        for place, size in enumerate(load.federation.sizes()[list(cohort.clients)].tolist()):
            if filled + size > limit and place > start:
                yield range(start, place)
                start, filled = place, 0
            filled += size
        yield range(start, len(cohort.clients))


def _at_once(load: Workload, cohort: Cohort) -> Results:
    method, task = cast(FixedBody, load.work.method), load.work.task
    shared, clients, rnd = cohort.shared, cohort.clients, cohort.rnd
    sizes = load.sizes(clients, ["train"])
    alike = groups(load, sizes, [cohort.personal])
    x = [load.federation.inputs(client, "train") for group in alike for client in take(clients, group)]
    features, pull_back, buffers = body_pass(task, {**task.personal_buffers(), **shared}, x)
    batches = [load.gather(take(clients, group), "train", rnd.index, with_inputs=False) for group in alike]
    places = _places([take(sizes, group) for group in alike], load.federation.y.device)

    def one(before: Tree, told: Tree, given: Tensor, data: Data) -> tuple[Tensor, Tree, Tree]:
        return method.on_features(task, before, given, data, rnd.told(told))

    on_features, told = vmap(one), cohort.told(features)
    g_features: list[Tensor] = []
    numbers: Tree = {}
    personal: dict[int, Tree] = {}
    refused: dict[int, str] = {}
    by_names: dict[Names, list[int]] = {}
    parts = torch.split(features, [sum(sizes[place][0] for place in group) for group in alike])
    weights = torch.split(cohort.weights[[*chain(*alike)]].to(features), [len(group) for group in alike])
    for group, data, where, w, own in zip(alike, batches, places, weights, parts, strict=True):
        members, before, given = take(clients, group), stack(take(cohort.personal, group)), _padded(own, where, data)
        guard = load.work.watching("on_features", shared)
        with reporting(load, "on_features", members, rnd.index, batched=True), guard:
            g, sent, after = on_features(before, stack(take(told, group)), given, data)
        if why := misfit({"features": g}, sent, {"features": given[0]}):
            refused |= dict.fromkeys(members, why)
            continue
        by_names.setdefault((frozenset(), frozenset(sent)), []).extend(members)
        g_features.append(_without_padding(g.mul_(w.reshape(-1, *[1] * (g.ndim - 1))), where))
        numbers = {name: numbers.get(name, 0) + torch.tensordot(w, value, dims=1) for name, value in sent.items()}

        finite = finite_rows(len(group), {"": g}, sent, after)
        kinds = {"gradient over": {"features": g}, "number": sent, "state": after}
        refused |= {members[row]: not_finite(kinds, row) for row in (~finite).nonzero()[:, 0].tolist()}
        personal |= dict(zip(members, unstack({**before, **after}, len(group)), strict=True))
    if refused := refused | majority(by_names)[1]:
        return _without(refused, load, cohort)

    (gradient,) = pull_back(_joined(g_features))
    weight = float(cohort.weights.sum())
    moved = displacement(buffers, {name: shared[name] for name in task.buffers if name in shared})
    tensors = {**gradient, **{name: weight * value for name, value in moved.items()}}
    total = cast(Sum, load.aggregate.start())
    total.add_sum(weight, tensors, numbers)
    replies = {(frozenset(tensors), frozenset(numbers)): Alike(total, personal)}
    return Results(replies, bytes_up=len(clients) * (num_bytes(tensors) + num_bytes(numbers)))


def _without(refused: dict[int, str], load: Workload, cohort: Cohort) -> Results:
    """Do the updates of the other clients alone, because what is not finite would spoil the common backward pass."""
    places = [place for place, client in enumerate(cohort.clients) if client not in refused]
    if places:
        results = _at_once(load, cohort.part(places))
        results.bytes_up += results.bytes_up // len(places) * len(refused)
    else:
        results = Results()
    results.refused = refused
    return results


def _places(sizes: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Sequence[Tensor]:
    """Return for each group the places of its examples among C * N, or nothing if it has no padding.

    The sizes say so, so that the device is not asked. All places go to it together.
    """
    masks = [np.arange(np.max(own)) < np.array(own) for own in sizes]
    found = [np.flatnonzero(mask)[: 0 if mask.all() else None] for mask in masks]
    return torch.split(torch.from_numpy(np.concatenate(found)).to(device), [len(own) for own in found])


def _without_padding(stacked: Tensor, places: Tensor) -> Tensor:
    """Reshape (C, N, ...) to (examples, ...), without padding."""
    flat = stacked.flatten(0, 1)
    return flat.index_select(0, places) if len(places) else flat


def _padded(flat: Tensor, places: Tensor, data: Data) -> Tensor:
    """Reshape (examples, ...) to (C, N, ...), with zeros as padding."""
    if len(places):
        flat = flat.new_zeros(data.mask.numel(), *flat.shape[1:]).index_copy_(0, places, flat)
    return flat.reshape(*data.mask.shape, *flat.shape[1:])


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
