"""Replies that do not fit: each engine refuses them by the name, the shape or the type of one tensor or number."""

import re
from typing import Any

import pytest
import torch

import reference as ref
from coterie import registry
from coterie.clients.messages import misfit
from coterie.core.method import Reply, settings
from coterie.core.tree import Tree
from coterie.errors import DivergedError
from coterie.methods import PFLEGO, FedAvg

SIZE = 8
"""Number of examples of the client whose reply does not fit."""
SHARED = {"w": torch.zeros(2, 3), "n": torch.zeros((), dtype=torch.int64)}


@pytest.mark.parametrize(
    ("tensors", "numbers", "why"),
    [
        ({"w": torch.zeros(5, 2, 3), "n": torch.zeros(5, dtype=torch.int64)}, {"loss": torch.zeros(5)}, None),
        ({"w": torch.zeros(5, 2, 3)}, {}, None),
        ({"v": torch.zeros(5, 2, 3)}, {}, "the tensor 'v' is not part of the shared model"),
        ({"w": torch.zeros(5, 3, 2)}, {}, "the tensor 'w' has shape (3, 2) instead of (2, 3)"),
        ({"w": torch.zeros(5, 1, 3)}, {}, "the tensor 'w' has shape (1, 3) instead of (2, 3)"),
        ({"w": torch.zeros(5, 2, 3).half()}, {}, "the tensor 'w' has type torch.float16 instead of torch.float32"),
        ({"n": torch.zeros(5)}, {}, "the tensor 'n' has type torch.float32 instead of torch.int64"),
        ({}, {"loss": torch.zeros(5, 2)}, "the number 'loss' has shape (2,), but must be a single number"),
        ({}, {"loss": torch.zeros(5) * 1j}, "the number 'loss' is complex"),
        ({}, {"ok": torch.zeros(5) > 0}, "the number 'ok' is True or False, but must be a number"),
        ({}, {None: torch.zeros(5)}, "the number None has a name that is not text"),
    ],
)
def test_misfit(tensors, numbers, why):
    assert misfit(tensors, numbers, SHARED) == why


def bad(kind: str, tensors: Tree, numbers: Tree) -> tuple[dict[Any, Any], dict[Any, Any]]:
    first, value = next(iter(tensors.items()))
    loss = numbers["loss"]
    return {
        "name": ({**tensors, "mine": value}, numbers),
        "shape": ({**tensors, first: value[:1]}, numbers),
        "type": ({**tensors, first: value.to(torch.float16)}, numbers),
        "number's shape": (tensors, {**numbers, "loss": loss.reshape(1)}),
        "nan": (tensors, {**numbers, "loss": loss * float("nan")}),
        "boolean": (tensors, {**numbers, "ok": loss > 0}),
        "no name": (tensors, {**numbers, None: loss}),
    }[kind]


@settings
class Misfits(FedAvg):
    """FedAvg with a client whose reply does not fit."""

    kind: str = ""
    everyone_too: bool = False

    def local_update(self, task, shared, personal, data, rnd):
        reply = super().local_update(task, shared, personal, data, rnd)
        if data.y.shape[0] != SIZE and not self.everyone_too:
            return reply
        tensors, numbers = bad(self.kind, reply.tensors, reply.numbers)
        return Reply(tensors, numbers, reply.personal)


@settings
class FeatureMisfits(PFLEGO):
    """PFLEGO with a client whose gradient over the features does not fit."""

    kind: str = ""

    def on_features(self, task, personal, features, data, rnd):
        g, numbers, after = super().on_features(task, personal, features, data, rnd)
        if data.y.shape[0] != SIZE:
            return g, numbers, after
        tensors, numbers = bad(self.kind, {"features": g}, numbers)
        return tensors["features"], numbers, after


KINDS = {
    "name": "the tensor 'mine' is not part of the shared model",
    "shape": r"the tensor '\S+' has shape \(1, \d\) instead of \(\d, \d\)",
    "type": r"the tensor '\S+' has type torch.float16 instead of torch.float64",
    "number's shape": r"the number 'loss' has shape \(1,\), but must be a single number",
    "boolean": "the number 'ok' is True or False, but must be a number",
    "no name": "the number None has a name that is not text",
}


def play(method, engine: str):
    setup = ref.setup(method)
    shared = setup.method.init_shared(setup.task)
    kept = ref.store(setup, registry.load("engine", engine)())
    return ref.play(setup, shared, {}, kept, [0, 1, 2, 3], ref.announced(setup, 4))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_reply_that_does_not_fit_is_refused(kind, engine):
    (refused,) = (played := play(Misfits(tau=1, kind=kind), engine)).refused.items()
    assert refused[0] == 2
    assert re.search(KINDS[kind], refused[1])
    assert all(torch.isfinite(value).all() for value in played.shared.values())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "name"])
def test_the_fused_engine_refuses_it_too(kind):
    (refused,) = play(FeatureMisfits(tau=1, kind=kind), "fused").refused.items()
    assert refused[0] == 2
    assert re.search(KINDS[kind], refused[1])


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("kind", KINDS)
def test_if_all_replies_do_not_fit_the_message_does_not_blame_the_rates(kind, engine):
    with pytest.raises(DivergedError, match=KINDS[kind] + "; correct what Misfits.local_update returns"):
        play(Misfits(tau=1, kind=kind, everyone_too=True), engine)


def test_if_no_reply_is_finite_the_message_says_so():
    with pytest.raises(DivergedError, match="has values that are NaN or infinite; lower the learning rates"):
        play(Misfits(tau=1, kind="nan", everyone_too=True), "loop")
