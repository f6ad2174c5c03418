"""Every engine gives the loop's result, for every registered method."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import reference as ref
from coterie import registry
from coterie.clients.engine import Engine
from coterie.clients.loop import Loop
from coterie.settings import Epochs
from engines import (
    HEADS,
    METHODS,
    SIZES,
    assert_equal,
    assert_same_rounds,
    fitting,
    game,
    named_options,
    representatives,
    slow_unless,
    takes_epochs,
)

TOLERANCE = {"float64": 1e-9, "float32": 1e-5}
BY_THEORY = ("1/A", "1/L", "1/trace", "optimal", "newton")
"""Options for linear models with a regularizer."""
BY_EPOCHS = [name for name in METHODS if takes_epochs(name)]
DISTINCT = representatives()
"""Methods with client code of their own. The default tests take them, and `make test-all` takes all methods."""
ON_FEATURES = ("fedavg", "fedbabu", "fedem", "fedrecon", "fedrep", "pflego", "scafflix")
"""Methods whose code depends on the kind of head or of target, and two that do not."""
REFUSED = (("fedbabu", "vmap", "frozen head"), ("fedbabu", "vmap", "logreg"), ("fedpac", "vmap", "numbers"))
"""Models that a method has nothing to train in, and targets that it cannot use."""
KINDS = ("counter", "deep head", "logreg", "norm average", "norm local", "numbers", "sequences", *HEADS)


def engine(name: str, setup: ref.Game, **options) -> Engine:
    made = registry.load("engine", name)(**options)
    assert made.unfit(setup.load) is None
    return made


def of_types() -> list[Any]:
    """Return (method, engine, dtype); the default tests have float32 for methods with client code of their own."""
    pairs = [(method, name, dtype) for method, name in fitting() for dtype in TOLERANCE]
    return [slow_unless(case[2] == "float64" or case[0] in DISTINCT, *case) for case in pairs]


@pytest.mark.parametrize(("method", "name", "dtype"), of_types())
def test_unequal_clients_of_different_heads(method, name, dtype):
    """Sizes from 1 to 30, heads from 1 to 3 outputs, everyone, some, a cohort of one, a one-example client alone."""
    setup = game(method, dtype=dtype)
    cohorts = [[0, 1, 2, 3, 4, 5], [4, 1], [2], [3]]
    assert_same_rounds(setup, engine(name, setup), cohorts, TOLERANCE[dtype])


def of_kinds() -> list[Any]:
    """Return (method, engine, model); the default tests have each method on a model that its code depends on."""
    cases = [(method, name, kind) for kind in KINDS for method, name in fitting(kind=kind)]
    cases = [case for case in cases if case not in REFUSED]
    distinct = ("norm average", "norm local", *HEADS)
    return [slow_unless(m in (DISTINCT if kind in distinct else ON_FEATURES), m, name, kind) for m, name, kind in cases]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of weight_norm under vmap
@pytest.mark.parametrize(("method", "name", "kind"), of_kinds())
def test_other_models(method, name, kind):
    setup = game(method, kind)
    assert_same_rounds(setup, engine(name, setup), [[0, 1, 2, 3, 4], [1, 3]], 1e-9)


def of_options() -> list[Any]:
    options = [*named_options(), ("pflego", "tau", 1)]
    return [(*option, name) for option in options for method, name in fitting() if method == option[0]]


@pytest.mark.parametrize(("method", "field", "value", "name"), of_options())
def test_every_option_that_has_a_name(method, field, value, name):
    setup = game(method, "logreg", mu=0.1, **{field: value}) if value in BY_THEORY else game(method, **{field: value})
    assert_same_rounds(setup, engine(name, setup), [[0, 1, 2, 3, 4, 5], [4, 1]], 1e-9)


def in_default(methods: Sequence[str]) -> list[Any]:
    return [slow_unless(method in DISTINCT, method) for method in methods]


@pytest.mark.parametrize(
    "method", in_default([name for name in METHODS if hasattr(registry.load("method", name), "batch_size")])
)
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


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        slow_unless(kind == "norm average" and method in DISTINCT, method, kind)
        for method in BY_EPOCHS
        for kind in ("mlp", "norm average", "norm local")
    ],
)
def test_local_work_and_adaptation_in_epochs(method, kind):
    setup = in_epochs(method, kind)
    assert_same_rounds(setup, engine("vmap", setup), [[0, 1, 2, 3, 4, 5], [4, 2]], 1e-9, adapt_steps=Epochs(2))


@pytest.mark.parametrize("method", [slow_unless(name in ("fedavg", "scaffold"), name) for name in BY_EPOCHS])
def test_epochs_on_a_cluster(method, ray):
    assert_same_rounds(in_epochs(method), ray, [[0, 1, 2, 3, 4, 5], [4, 2]], 1e-9, adapt_steps=Epochs(2))


@pytest.mark.parametrize(("method", "name"), [pair for pair in fitting() if pair[0] not in BY_EPOCHS])
def test_adaptation_in_epochs(method, name):
    """Of methods whose local work has no epochs. An epoch of steps with all examples is one step."""
    setup = game(method, batch=2 if hasattr(registry.load("method", method), "batch_size") else 0)
    assert_same_rounds(setup, engine(name, setup), [[0, 1, 2, 3, 4, 5]], 1e-9, adapt_steps=Epochs(2))


@pytest.mark.parametrize(("method", "name"), [slow_unless(pair[0] in DISTINCT, *pair) for pair in fitting()])
def test_a_cohort_that_does_not_fit_into_memory_is_done_in_turns(method, name):
    setup = game(method)
    assert_same_rounds(setup, engine(name, setup, memory=1e-9), [[0, 1, 2, 3, 4, 5]], 1e-9)


@pytest.mark.parametrize(("method", "name"), [slow_unless(pair[0] in DISTINCT, *pair) for pair in fitting()])
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
        assert list(played.refused) == [1]
        results.append((played, store))
    (loop, store), (other, their_store) = results
    assert_equal(loop.shared, other.shared, 1e-9)
    assert loop.cost.bytes_up == other.cost.bytes_up
    for i in range(len(SIZES)):
        assert_equal(store[i], their_store[i], 1e-9)
