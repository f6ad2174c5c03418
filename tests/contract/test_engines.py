"""Every engine gives the loop's result, for every registered method."""

from dataclasses import replace

import pytest
import torch

import reference as ref
from coterie import registry
from coterie.clients.engine import Engine
from coterie.clients.loop import Loop
from coterie.settings import Epochs
from engines import METHODS, SIZES, assert_equal, assert_same_rounds, game, named_options, takes_epochs

ENGINES = ["vmap", "fused"]
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
BY_THEORY = ("1/L", "1/trace", "optimal", "newton")
"""For linear models with a regularizer."""
BY_EPOCHS = [name for name in METHODS if takes_epochs(name)]


def engine(name: str, setup: ref.Game, **options) -> Engine:
    made = registry.load("engine", name)(**options)
    if reason := made.unfit(setup.load):
        pytest.skip(f"{name}: {reason}")
    return made


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_unequal_clients_of_different_heads(method, name, dtype):
    """Sizes from 1 to 30, heads from 1 to 3 outputs, everyone, some, a cohort of one, a one-example client alone."""
    setup = game(method, dtype=dtype)
    cohorts = [[0, 1, 2, 3, 4, 5], [4, 1], [2], [3]]
    assert_same_rounds(setup, engine(name, setup), cohorts, TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["deep head", "logreg", "norm average", "norm local", "numbers", "sequences"])
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_other_models(method, name, kind):
    setup = game(method, kind)
    assert_same_rounds(setup, engine(name, setup), [[0, 1, 2, 3, 4], [1, 3]], 1e-9)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(("method", "field", "value"), [*named_options(), ("pflego", "tau", 1)])
def test_every_option_that_has_a_name(method, field, value, name):
    setup = game(method, "logreg", mu=0.1, **{field: value}) if value in BY_THEORY else game(method, **{field: value})
    assert_same_rounds(setup, engine(name, setup), [[0, 1, 2, 3, 4, 5], [4, 1]], 1e-9)


@pytest.mark.parametrize("method", [name for name in METHODS if hasattr(registry.load("method", name), "batch_size")])
def test_minibatches(method):
    setup = game(method, batch=2)
    assert_same_rounds(setup, engine("vmap", setup), [[0, 1, 2, 3, 4, 5], [4, 2]], 1e-9)


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray", reason="pip install 'coterie[ray]'")
    crew = registry.load("engine", "ray")(workers=2)
    yield crew
    crew.close()


def in_epochs(method: str, kind: str = "mlp") -> ref.Game:
    """Two epochs of batches of 2 for each client, of sizes from 1 to 30: from 2 to 30 local steps, and 10 and 12 for
    those two that are computed together."""
    setup = game(method, kind)
    return setup.having(method=replace(setup.method, tau="2 epochs", batch_size=2))


@pytest.mark.parametrize("kind", ["mlp", "norm average", "norm local"])
@pytest.mark.parametrize("method", BY_EPOCHS)
def test_local_work_and_adaptation_in_epochs(method, kind):
    setup = in_epochs(method, kind)
    assert_same_rounds(setup, engine("vmap", setup), [[0, 1, 2, 3, 4, 5], [4, 2]], 1e-9, adapt_steps=Epochs(2))


@pytest.mark.parametrize("method", BY_EPOCHS)
def test_epochs_on_a_cluster(method, ray):
    assert_same_rounds(in_epochs(method), ray, [[0, 1, 2, 3, 4, 5], [4, 2]], 1e-9, adapt_steps=Epochs(2))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", [name for name in METHODS if name not in BY_EPOCHS])
def test_adaptation_in_epochs(method, name):
    """Of methods whose local work has no epochs. An epoch of steps with all examples is one step."""
    setup = game(method, batch=2 if hasattr(registry.load("method", method), "batch_size") else 0)
    assert_same_rounds(setup, engine(name, setup), [[0, 1, 2, 3, 4, 5]], 1e-9, adapt_steps=Epochs(2))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_cohort_that_does_not_fit_into_memory_is_done_in_turns(method, name):
    setup = game(method)
    assert_same_rounds(setup, engine(name, setup, memory=1e-9), [[0, 1, 2, 3, 4, 5]], 1e-9)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_sends_nonsense_is_refused(method, name):
    setup = game(method)
    x = setup.federation.x.clone()
    x[setup.federation.splits["train"].row(1)] = torch.inf
    setup = setup.having(federation=replace(setup.federation, x=x))
    shared = setup.method.init_shared(setup.task)
    results = []
    for each in (Loop(), engine(name, setup)):
        memory, store = setup.method.init_memory(setup.task, shared), ref.store(setup, each)
        played = ref.play(setup, shared, memory, store, [0, 1, 4], ref.announced(setup, 3))
        assert played.refused == [1]
        results.append((played, store))
    (loop, store), (other, their_store) = results
    assert_equal(loop.shared, other.shared, 1e-9)
    assert loop.cost.bytes_up == other.cost.bytes_up
    for i in range(len(SIZES)):
        assert_equal(store[i], their_store[i], 1e-9)
