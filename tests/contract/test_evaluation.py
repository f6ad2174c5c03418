"""How often examples pass through the body in one evaluation, for every registered method."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie import Federation, registry
from coterie.clients import work
from coterie.core.method import AdaptsHead
from coterie.core.task import Task
from coterie.streams import torch_seeded
from engines import METHODS, game

SPLITS = {"train": 6, "test": 4, "validation": 2}
"""Number of examples of each client."""
HEADS_ONLY = [name for name in METHODS if issubclass(registry.load("method", name), AdaptsHead)]


def clients() -> Federation:
    rng = np.random.default_rng(3)
    parts = [[(rng.normal(size=(n, 4)), np.arange(n) % 2) for n in SPLITS.values()] for _ in range(3)]
    return Federation.from_arrays({str(i): sum(part, ()) for i, part in enumerate(parts)})


def setup_of(method: str, kind: str) -> ref.Game:
    setup = game(method, kind)
    return setup.having(federation=clients().to(torch.float64, torch.device("cpu")))


def passes(setup: ref.Game, engine: str, who: list[int]) -> Counter[tuple[str, bool]]:
    """Evaluate clients, and count passes through the body by split and by whether it is in training mode."""
    split_of, counted = {n: split for split, n in SPLITS.items()}, Counter[tuple[str, bool]]()

    def count(body: nn.Module, given: Any, features: Any) -> None:
        counted[split_of[given[0].shape[0]], body.training] += 1  # of one client, also under vmap

    kept = ref.store(setup, registry.load("engine", engine)())
    assert setup.load.work.probe.example_bytes  # measured once, before the passes are counted
    hooks = [body.register_forward_hook(count) for body in (setup.task._body, setup.task._eval_body)]
    kept.score(setup.method.init_shared(setup.task), who, 3)
    for hook in hooks:
        hook.remove()
    return counted


def test_the_methods_that_adapt_the_head_only():
    assert HEADS_ONLY == ["fedbabu", "fedpac", "fedrecon", "fedrep", "pflego"]


@pytest.mark.parametrize("kind", ["mlp", "deep head"])
@pytest.mark.parametrize("method", HEADS_ONLY)
def test_a_split_passes_through_the_body_once_if_only_the_head_adapts(method, kind):
    setup = setup_of(method, kind)
    assert setup.task.modes_agree
    for engine, who in (("loop", [0]), ("vmap", [0, 1, 2])):
        assert passes(setup, engine, who) == {(split, False): 1 for split in SPLITS}


def test_the_fused_engine_evaluates_in_as_few_passes():
    assert passes(setup_of("pflego", "mlp"), "fused", [0, 1, 2]) == {(split, False): 1 for split in SPLITS}


@pytest.mark.parametrize("method", HEADS_ONLY)
def test_adaptation_has_a_pass_of_its_own_if_training_features_are_others(method):
    once = {(split, False): 1 for split in SPLITS} | {("train", True): 1}
    assert passes(setup_of(method, "norm average"), "loop", [0]) == once
    twice = {**once, **{(split, False): 2 for split in SPLITS}}
    assert passes(setup_of(method, "norm local"), "loop", [0]) == twice  # adaptation moves the client's buffers


@pytest.mark.parametrize("method", [name for name in METHODS if name not in HEADS_ONLY])
def test_a_model_that_adapts_as_a_whole_predicts_once_for_each_protocol(method):
    found = passes(setup_of(method, "mlp"), "loop", [0])
    each = found["train", False]  # FedEM has several bodies
    assert each == 2 * (3 if method == "fedem" else 1)
    assert found["test", False] == found["validation", False] == each


@pytest.mark.parametrize("kind", ["mlp", "deep head", "norm average", "norm local", "counter", "numbers", "sequences"])
@pytest.mark.parametrize("method", HEADS_ONLY)
def test_shared_passes_give_the_same_bits(method, kind):
    if (method, kind) == ("fedpac", "numbers"):
        pytest.skip("FedPAC needs classes")
    setup = game(method, kind, dtype="float32")
    does, shared, personal = setup.load.work, setup.method.init_shared(setup.task), ref.store(setup)[0]
    train, test = setup.data(0, "train", 0), setup.data(0, "test", 0)
    (adapted,) = work.adapt(does, shared, personal, train, 3)
    separate = [work.score(does, shared, state, train) for state in (personal, adapted)]
    separate += [work.score(does, shared, state, test) for state in (personal, adapted)]
    for found, (expected,) in zip(work.evaluate(does, shared, personal, train, test, steps=3), separate, strict=True):
        assert found == expected


class Modes(nn.Module):
    """A body that does something else in training, which a batch of zeros does not show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if self.training else x


@pytest.mark.parametrize(
    ("layer", "agree"),
    [(nn.ReLU(), True), (Modes(), False), (nn.Dropout(0.5), False), (nn.BatchNorm1d(3), False)],
)
def test_whether_the_body_has_the_same_features_in_training(layer, agree):
    with torch_seeded(0):
        net = nn.Sequential(nn.Linear(4, 3), layer, nn.Linear(3, 5))
    assert Task(net, "2", torch.zeros(1, 4)).modes_agree == agree
