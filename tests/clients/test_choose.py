"""The engine that `auto` chooses, and the reason that it gives."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie import Federation
from coterie.aggregate.mean import Mean
from coterie.clients.choose import choose
from coterie.errors import UserError
from coterie.methods import PFLEGO, FedAvg
from coterie.models.module import Own
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.training import train


class OneByOne(Mean):
    takes_sums: ClassVar[bool] = False


def large() -> Federation:
    rng = np.random.default_rng(0)
    x, y = rng.random((300, 64), dtype=np.float32), np.arange(300) % 3
    return Federation.from_arrays({str(i): (x, y, x[:3], y[:3]) for i in range(3)})


def one_by_one(setup: ref.Game) -> ref.Game:
    return ref.Game(replace(setup.load, aggregate=OneByOne()))


def own(*layers: nn.Module) -> Own:
    return Own(net=nn.Sequential(*layers, nn.Linear(8, 5)), head_name=str(len(layers)))


CONVOLUTION = nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 1), nn.Flatten()


class Branch(nn.Module):
    """A model that branches on the values of its inputs, so many clients cannot be computed at once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.square().sum() >= 0 else -x


BRANCH = nn.Linear(4, 8), Branch()
LARGE = nn.Linear(64, 2048), nn.Linear(2048, 8), nn.LayerNorm(8)
NORM, DROPOUT = (nn.Linear(4, 8), nn.BatchNorm1d(8)), (nn.Linear(4, 8), nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("setup", "name", "reason"),
    [
        (lambda: ref.setup(PFLEGO()), "Fused", "the body stays fixed"),
        (lambda: ref.setup(PFLEGO(), model=own(*CONVOLUTION)), "Fused", "the body stays fixed"),
        (lambda: one_by_one(ref.setup(PFLEGO())), "Vmap", "dense layers"),
        (lambda: ref.setup(PFLEGO(), ref.federation((4, 4, 4)), own(*NORM)), "Vmap", "MFLOP is too small"),
        (lambda: ref.setup(PFLEGO(), model=own(*DROPOUT)), "Loop", "dropout"),
        (lambda: ref.setup(FedAvg()), "Vmap", "dense layers"),
        (lambda: ref.setup(FedAvg(), large(), own(nn.Linear(64, 2048), nn.Linear(2048, 8))), "Vmap", "dense layers"),
        (lambda: ref.setup(FedAvg(), model=own(*CONVOLUTION)), "Loop", "convolutions"),
        (lambda: ref.setup(FedAvg(), model=own(*DROPOUT)), "Loop", "dropout"),
        (lambda: ref.setup(FedAvg(), model=own(*BRANCH)), "Loop", "does not run under torch.func.vmap"),
        (lambda: ref.setup(PFLEGO(), model=own(*BRANCH)), "Loop", "does not run under torch.func.vmap"),
        (lambda: ref.setup(FedAvg(), large(), own(*LARGE)), "Loop", "MFLOP keeps"),
        (lambda: ref.setup(FedAvg(batch_size=2), large(), own(*LARGE)), "Vmap", "MFLOP is too small"),
    ],
)
def test_auto(setup, name, reason):
    engine, said = choose(setup().load, memory=2.0)
    assert type(engine).__name__ == name
    assert reason in said


def test_auto_says_where_its_threshold_was_measured():
    setup = ref.setup(FedAvg(), model=own(nn.Linear(4, 8), nn.LayerNorm(8)))
    elsewhere = replace(setup.federation, x=setup.federation.x.to("meta"))
    assert "measured" not in choose(setup.load, memory=2.0)[1]
    assert choose(setup.having(federation=elsewhere).load, memory=2.0)[1].endswith(
        "; this threshold was measured on a CPU, so compare engines on meta"
    )


@pytest.mark.parametrize(
    ("engine", "method", "model", "why_not"),
    [
        ("fused", FedAvg(), "mlp", "moves the body"),
        ("fused", PFLEGO(), nn.Sequential(*NORM, nn.Linear(8, 5)), "BatchNorm"),
        ("vmap", PFLEGO(), nn.Sequential(*DROPOUT, nn.Linear(8, 5)), "dropout"),
        ("vmap", FedAvg(), nn.Sequential(*BRANCH, nn.Linear(8, 5)), "does not run under torch.func.vmap"),
        ("fused", PFLEGO(), nn.Sequential(*BRANCH, nn.Linear(8, 5)), "does not run under torch.func.vmap"),
    ],
)
def test_an_engine_that_cannot_do_the_work_says_so_before_it_starts(engine, method, model, why_not):
    with pytest.raises(UserError, match=f'engine.kind = "{engine}" cannot do this: .*{why_not}.*; use "auto"'):
        train(ref.federation((4, 4, 4)), engine=engine, method=method, model=model, head="2", rounds=1)


@pytest.mark.parametrize("method", [FedAvg(tau=2), PFLEGO(tau=2)])
def test_a_model_that_looks_into_its_inputs_is_trained(method):
    run = train(
        ref.federation((4, 4, 4)), method=method, model=nn.Sequential(*BRANCH, nn.Linear(8, 5)), head="2", rounds=1
    )
    assert run.summary.engine == "loop"


def test_the_choice_is_said_in_one_line(caplog):
    caplog.set_level("INFO", "coterie")
    train(ref.federation(), method="pflego", rounds=1)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("engine")]
    assert lines == [
        "engine fused: the cohort through the shared body at once, then all heads together "
        "(the body stays fixed during a round)"
    ]


def test_threads_are_set():
    before = torch.get_num_threads()
    try:
        prepare(Recipe.parse({"engine": {"threads": 3}}), ref.federation())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
