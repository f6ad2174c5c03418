"""Functions of a method that change what other clients start from: each is stopped with an error that names it."""

from typing import Any

import pytest
import torch

import coterie
import reference as ref
from coterie.clients.messages import same_values
from coterie.core.method import Calibrates, Exchanges, Prepares, Receives, settings
from coterie.core.steps import fine_tuned
from coterie.core.tree import pick
from coterie.errors import ClientError, UserError
from coterie.methods import PFLEGO, FedAvg

FUNCTIONS = (
    "init_memory",
    "init_personal",
    "prepare",
    "measure",
    "local_update",
    "server_update",
    "receive",
    "read",
    "adapt",
    "predict",
    "personal_params",
)
ENGINES = ("loop", "vmap")


@settings
class Changing(FedAvg, Prepares, Calibrates, Receives, Exchanges):
    """FedAvg that changes a tensor in place in one of its functions."""

    function: str = ""
    is_calibrated = False

    def _in(self, function: str, *trees: dict[str, Any]) -> None:
        if function == self.function:
            for value in trees[0].values():
                with torch.no_grad():
                    value.mul_(0.5)

    def init_memory(self, task, shared):
        self._in("init_memory", shared)
        return {}

    def init_personal(self, task, client):
        self._in("init_personal", task.initial)
        return {".prepared": torch.zeros(())}

    def prepare(self, task, personal, data):
        self._in("prepare", task.initial)
        return {".prepared": torch.ones(())}

    def measure(self, task, data):
        self._in("measure", task.initial)
        return {}

    def calibrate(self, measured):
        return self

    def local_update(self, task, shared, personal, data, rnd):
        reply = super().local_update(task, shared, personal, data, rnd)
        self._in("local_update", shared)
        return reply._replace(personal=personal, letter=self.letter_form(task))

    def letter_form(self, task):
        return {".letter": torch.zeros(())}

    def exchange(self, letters, rnd):
        return letters

    def server_update(self, task, shared, memory, update, rnd):
        after = super().server_update(task, shared, memory, update, rnd)
        self._in("server_update", shared)
        return after

    def receive(self, task, shared, personal, rnd):
        self._in("receive", shared)
        return personal

    def read(self, task, personal, letter, rnd):
        self._in("read", task.initial)
        return personal

    def personal_params(self, task, shared, personal):
        self._in("personal_params", shared)
        return pick({**shared, **personal}, task.initial)

    def predict(self, task, shared, personal, x):
        self._in("predict", shared)
        return task.outputs(self.personal_params(task, shared, personal), x)

    def adapt(self, task, shared, personal, data, steps):
        self._in("adapt", shared)
        return {**personal, **fine_tuned(task, pick({**shared, **personal}, task.initial), data, steps, 0.1)}


def train(method, engine: str):
    clients = ref.federation((5, 3, 8, 5))
    return coterie.train(clients, method=method, engine=engine, rounds=2, eval_every=1, progress=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_method_that_changes_nothing_is_trained(engine):
    assert len(train(Changing(tau=1), engine).history) == 2


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_changes_the_shared_or_the_initial_model_is_named(function, engine, threads):
    named = "predict" if function == "personal_params" else function  # which calls it
    torch.set_num_threads(threads)
    try:
        with pytest.raises(
            (ClientError, UserError), match=rf"Changing.{named} changed '\S+' of the \w+ model in place"
        ):
            train(Changing(tau=1, function=function), engine)
    finally:
        torch.set_num_threads(1)


@settings
class ChangingHead(PFLEGO):
    """PFLEGO, whose adaptation changes the shared body in place."""

    function: str = "adapt_head"

    def adapt_head(self, task, shared, *more):
        if self.function == "adapt_head":
            next(iter(shared.values())).add_(1.0)
        return super().adapt_head(task, shared, *more)

    def personal_params(self, task, shared, personal):
        if self.function == "personal_params":
            next(iter(shared.values())).add_(1.0)
        return super().personal_params(task, shared, personal)


@pytest.mark.parametrize("engine", ["loop", "vmap", "fused"])
@pytest.mark.parametrize("function", ["adapt_head", "personal_params"])
def test_an_adaptation_on_fixed_features_is_watched(function, engine):
    named = "predict" if function == "personal_params" else function  # which calls it when clients are scored
    with pytest.raises(ClientError, match=rf"ChangingHead.{named} changed 'body.1.weight' of the shared model"):
        train(ChangingHead(tau=1, function=function), engine)


class ThroughData(FedAvg):
    """FedAvg that changes the shared model in a way that PyTorch does not count."""

    def local_update(self, task, shared, *more):
        reply = super().local_update(task, shared, *more)
        next(iter(shared.values())).data.add_(1.0)
        return reply


@pytest.mark.parametrize("engine", ENGINES)
def test_values_are_compared_in_the_first_round_only(engine, monkeypatch):
    compared: list[int] = []

    def counting(function, shared):
        compared.append(len(shared))
        return same_values(function, shared)

    with pytest.raises(ClientError, match=r"ThroughData.local_update changed '\S+' of the shared model in place"):
        train(ThroughData(tau=1), engine)
    monkeypatch.setattr("coterie.clients.engine.same_values", counting)
    run = train(FedAvg(tau=1), engine)
    assert compared == [len(run.shared), 0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("function", ["local_update", "adapt"])
def test_a_function_that_changes_the_examples_is_named(function, engine):
    class Zeroing(FedAvg):
        """FedAvg that overwrites the inputs after use."""

        def local_update(self, task, shared, personal, data, rnd):
            reply = super().local_update(task, shared, personal, data, rnd)
            if function == "local_update":
                data.x.zero_()
            return reply

        def adapt(self, task, shared, personal, data, steps):
            adapted = super().adapt(task, shared, personal, data, steps)
            if function == "adapt":
                data.x.zero_()
            return adapted

    with pytest.raises(
        ClientError, match=rf"Zeroing\.({function}|adapt or predict) changed 'train' of the examples in place"
    ):
        train(Zeroing(tau=1), engine)
