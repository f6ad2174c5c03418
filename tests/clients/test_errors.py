"""Exceptions in a method's functions: which method, which function and which client they name."""

from typing import Any

import pytest
import torch

import coterie
import reference as ref
from coterie.core.method import Method, Prepares, Receives, Reply, settings
from coterie.core.tree import displacement
from coterie.errors import ClientError, UserError
from coterie.methods import FedAvg

SIZE = 5
"""Number of training examples of the client for which `Broken` fails."""
ENGINES = ("loop", "vmap")


@settings
class Broken(Prepares, Receives):
    """A method that fails in one of its functions, for clients with SIZE examples."""

    stage: str = ""
    kind: str = "key"

    def _fail(self, stage: str, size: int) -> None:
        if stage == self.stage and size == SIZE:
            raise UserError("set it right") if self.kind == "user" else KeyError("no such thing")

    def init_personal(self, task, client):
        return {".prepared": torch.zeros(())}

    def prepare(self, task, personal, data):
        self._fail("prepare", len(data.y))
        return {".prepared": torch.ones(())}

    def local_update(self, task, shared, personal, data, rnd):
        self._fail("local_update", len(data.y))
        loss, _ = task.loss(shared, data)
        return Reply(displacement(shared, shared), {"loss": loss}, personal)

    def receive(self, task, shared, personal, rnd):
        self._fail("receive", SIZE)
        return personal

    def adapt(self, task, shared, personal, data, steps):
        self._fail("adapt", len(data.y))
        return personal

    def predict(self, task, shared, personal, x):
        self._fail("predict", len(x))
        return task.outputs(shared, x)


def train(stage: str, engine: str, sizes: tuple[int, ...], **options: Any) -> coterie.Run:
    return coterie.train(ref.federation(sizes), method=Broken(stage=stage, **options), engine=engine, rounds=1)


def test_a_method_that_does_not_fail_is_trained():
    for engine in ENGINES:
        assert len(train("", engine, (3, SIZE, 3)).history) == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stage", ["prepare", "local_update", "adapt", "predict"])
def test_an_error_names_the_method_the_function_and_the_client(stage, engine):
    """Only the second of three clients fails. All have different sizes, so that they are not computed together."""
    with pytest.raises(ClientError, match=rf"^Broken\.{stage} failed for client 'client-1'.*: KeyError: ") as caught:
        train(stage, engine, (1, SIZE, 13))
    assert "no such thing" in str(caught.value)
    assert type(caught.value.__cause__) is KeyError
    assert ("in round 1" in str(caught.value)) == (stage == "local_update")


def test_receive_has_no_data_and_names_its_client_too():
    with pytest.raises(ClientError, match=r"^Broken\.receive failed for client 'client-0': KeyError: ") as caught:
        train("receive", "loop", (3, 4))
    assert type(caught.value.__cause__) is KeyError


@pytest.mark.parametrize("stage", ["local_update", "adapt", "receive", "predict"])
@pytest.mark.parametrize(
    ("number", "who"),
    [
        (2, "clients 'client-0', 'client-1', computed together"),
        (5, "clients 'client-0', 'client-1', 'client-2', ..., computed together"),
    ],
)
def test_clients_that_are_computed_together_are_named_together(stage, number, who):
    with pytest.raises(ClientError) as caught:
        train(stage, "vmap", (SIZE,) * number)
    assert str(caught.value).startswith(f"Broken.{stage} failed for {who}")
    assert 'engine.kind = "loop" computes one client at a time' in str(caught.value)
    assert type(caught.value.__cause__) is KeyError


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stage", ["prepare", "local_update", "adapt", "receive", "predict"])
def test_an_error_of_the_user_passes_unchanged(stage, engine):
    with pytest.raises(UserError) as caught:
        train(stage, engine, (SIZE,) * 3, kind="user")
    assert str(caught.value) == "set it right"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("stage", "words"), [("local_update", "must return a Reply, not dict"), ("adapt", "must return the personal state")]
)
def test_a_wrong_result_names_the_function_and_the_client(stage, words, engine):
    class Wrong(FedAvg):
        pass

    setattr(Wrong, stage, lambda *_: {} if stage == "local_update" else None)
    with pytest.raises(ClientError, match=f"Wrong.{stage} failed for client.*{words}"):
        coterie.train(ref.federation((5, 3)), method=Wrong(), engine=engine, rounds=1)


def test_a_method_without_its_decorator_is_named():
    class Plain(Method):
        def local_update(self, task, shared, personal, data, rnd):
            raise AssertionError

        def adapt(self, task, shared, personal, data, steps):
            raise AssertionError

    with pytest.raises(UserError, match="Plain is not a dataclass; decorate it with @settings"):
        coterie.train(ref.federation((5, 3)), method=Plain(), rounds=1)
