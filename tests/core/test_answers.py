"""What a method of one's own returns: each mistake names the class and the function."""

from typing import Any

import pytest
import torch

import reference as ref
from coterie import train
from coterie.core.method import Method, Passes
from coterie.errors import ClientError, UserError
from coterie.methods.fedavg import FedAvg

TREE = "a dict of tensors by name"
STEPS = r"rnd.announce\(steps=...\) with at least one local step"
WEIGHTS = "a tensor of 4 finite numbers >= 0, one for each client of the cohort, and not all zero"
PASSES = r"Passes\(...\) of numbers >= 0, or None"
WRONG = [
    *(("init_shared", TREE, value) for value in (None, [torch.ones(1)], {"w": 1.0})),
    *(("init_memory", TREE, value) for value in (None, 3, {"m": [1.0]}, {1: torch.ones(1)})),
    *(("plan", STEPS, value) for value in (None, 5)),
    *(
        ("weights", WEIGHTS, value)
        for value in (None, [1.0] * 4, torch.ones(()), torch.ones(3), torch.ones(4, 1), torch.zeros(4))
    ),
    *(("weights", WEIGHTS, torch.tensor([1, 1, 1, odd])) for odd in (float("nan"), float("inf"), -1.0, 1j)),
    *(("notes", "a dict of Python numbers or text", value) for value in (None, "text", {"a": torch.ones(1)}, {1: 2.0})),
    *(("passes", PASSES, value) for value in (7, (1, 2, 3, 4), Passes(-1, 1, 1, 1), Passes(float("nan"), 1, 1, 1))),
]


def returning(function: str, value: Any) -> Method:
    """Return FedAvg with a function that returns this value, or raises it."""

    def odd(self: Method, *_: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return type("Odd", (FedAvg,), {function: odd})(tau=1)


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize(("function", "expected", "value"), WRONG)
def test_what_does_not_fit_is_named_with_what_was_expected(function, expected, value, engine):
    with pytest.raises(UserError, match=rf"^Odd\.{function} must return {expected}.*, not "):
        train(ref.federation(), method=returning(function, value), rounds=1, engine=engine)


@pytest.mark.parametrize("function", ["init_shared", "init_memory", "plan", "weights", "notes", "passes"])
def test_an_exception_is_named(function):
    with pytest.raises(UserError, match=rf"^Odd\.{function} failed, and must return .*: KeyError: 'mine'"):
        train(ref.federation(), method=returning(function, KeyError("mine")), rounds=1)


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("value", [None, 3, {"a": 1}, torch.ones(2)])
@pytest.mark.parametrize("function", ["init_personal", "adapt"])
def test_a_personal_state_that_does_not_fit_is_named_with_the_client(function, value, engine):
    words = rf"^Odd\.{function} failed for client 'client-0': .*{function} must return the personal state, a dict of"
    with pytest.raises(ClientError, match=words):
        train(ref.federation(), method=returning(function, value), rounds=1, engine=engine)


def test_a_cost_that_cannot_be_compared_is_named():
    with pytest.raises(UserError, match=r"^Odd.passes failed, and must return Passes\(...\).*: TypeError"):
        train(ref.federation(), method=returning("passes", Passes("1", 1, 1, 1)), rounds=1)


def test_whole_numbers_are_weights():
    run = train(ref.federation(), method=returning("weights", torch.ones(4, dtype=torch.int64)), rounds=1)
    assert run.history[0].train_loss > 0
