"""Local steps in closed form equal those of autograd, which `CountFlops` asks for."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from coterie.core.counting import CountFlops
from coterie.core.data import Data
from coterie.core.objective import Classification, Objective, Regression
from coterie.core.steps import Pull, dense, dense_layers, head_descent, head_gradient, head_loss, local_sgd
from coterie.core.steps import head as steps_head
from coterie.core.steps.dense_body import body_pass
from coterie.core.task import Task
from coterie.core.tree import Tree, pick, stack
from coterie.settings import Epochs

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
FEATURES, CLASSES, EXAMPLES = 9, 4, 6
CLASSIFIES = Classification()
LAYERS: dict[str, list[nn.Module]] = {
    "logreg": [],
    "mlp": [nn.Linear(FEATURES, 5), nn.ReLU()],
    "no bias": [nn.Linear(FEATURES, 5, bias=False), nn.Tanh()],
    "deep": [nn.Linear(FEATURES, 6), nn.SiLU(), nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 7), nn.LeakyReLU(0.2)],
    "gelu": [nn.Sequential(nn.Linear(FEATURES, 5), nn.GELU()), nn.GELU(approximate="tanh")],
}


def build(layers: str = "mlp", objective: Objective = CLASSIFIES) -> Task:
    torch.manual_seed(0)
    width = next((part.out_features for part in LAYERS[layers][::-1] if isinstance(part, nn.Linear)), FEATURES)
    width = 5 if layers == "gelu" else width
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Flatten(), *LAYERS[layers]))
    net.add_module("head", nn.Linear(width, CLASSES if isinstance(objective, Classification) else 1))
    return Task(net.double(), "head", torch.zeros(1, 3, FEATURES // 3, dtype=torch.float64), objective=objective)


def examples(seed: int, size: int = EXAMPLES, padding: int = 0) -> Data:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(size + padding, 3, FEATURES // 3, generator=random, dtype=torch.float64)
    y = torch.randint(CLASSES, (size + padding,), generator=random)
    mask = torch.arange(size + padding) < size
    return Data(x, y, mask, torch.ones(CLASSES, dtype=torch.bool), torch.tensor(seed * 1000 + 7))


def tree(task: Task, seed: int) -> Tree:
    random = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(task.initial[name].shape, generator=random, dtype=torch.float64) / 3 for name in task.params
    }


def by_tape(*args: Any, **keys: Any) -> tuple[Tree, Tensor]:
    with CountFlops():
        return local_sgd(*args, **keys)


def same(one: tuple[Tree, Tensor], other: tuple[Tree, Tensor]) -> None:
    torch.testing.assert_close(one[0], other[0], **CLOSE)
    torch.testing.assert_close(one[1], other[1], **CLOSE)


@pytest.fixture(params=["weights", "span"])
def way(request, monkeypatch):
    """Train the first layer in one of two ways, whatever it costs, and check that it happened."""
    taken = []
    kind = dense_layers._Span if request.param == "span" else dense_layers._Bottom
    original = kind.__init__
    monkeypatch.setattr(dense, "span_is_cheaper", lambda *_: request.param == "span")
    monkeypatch.setattr(kind, "__init__", lambda *args: taken.append(1) or original(*args))
    yield request.param
    assert taken, "the path was not taken"


OPTIONS = [
    {"momentum": momentum, "pull": pull, "control": control}
    for momentum, pull, control in product((0.0, 0.6), (None, "origin", "start", "other"), (False, True))
]


def keys_of(task: Task, options: dict[str, Any], start: Tree) -> dict[str, Any]:
    centre = {None: None, "origin": None, "start": start, "other": tree(task, 5)}[options["pull"]]
    return {
        "momentum": options["momentum"],
        "pull": None if options["pull"] is None else Pull(0.3, centre),
        "control": tree(task, 6) if options["control"] else None,
    }


@pytest.mark.parametrize("batch", [0, 2, 4, 6, 9])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_all_terms_equal_those_of_autograd(options, batch, way):
    task, data = build(), examples(1)
    start = {**tree(task, 3), ".own": torch.ones(2)}
    keys = keys_of(task, options, start)
    for steps in (1, 5, Epochs(2)):
        ours = local_sgd(task, start, data, steps, 0.2, batch, **keys)
        same(ours, by_tape(task, start, data, steps, 0.2, batch, **keys))
        assert ours[0][".own"] is start[".own"]


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("batch", [0, 4])
def test_all_layers_equal_those_of_autograd(layers, batch, way):
    task = build(layers)
    assert task.chain
    same(
        local_sgd(task, tree(task, 3), examples(1), 5, 0.2, batch),
        by_tape(task, tree(task, 3), examples(1), 5, 0.2, batch),
    )


@pytest.mark.parametrize("over", ["body", "head", "params"])
def test_only_some_parameters_are_trained(over):
    task, start = build("deep"), tree(build("deep"), 3)
    names = getattr(task, over)
    ours = local_sgd(task, start, examples(1), 5, 0.2, 4, over=names)
    same(ours, by_tape(task, start, examples(1), 5, 0.2, 4, over=names))
    assert all((ours[0][name] is value) == (name not in names) for name, value in start.items())


@pytest.mark.parametrize("layers", ["mlp", "logreg"])
def test_weights_are_trained_without_their_biases(layers, way):
    task, start = build(layers), tree(build(layers), 3)
    names = [name for name in task.params if name.endswith("weight")]
    keys = {"over": names, "pull": Pull(0.3, pick(tree(task, 5), names)), "control": pick(tree(task, 6), names)}
    ours = local_sgd(task, start, examples(1), 5, 0.2, 4, **keys)
    same(ours, by_tape(task, start, examples(1), 5, 0.2, 4, **keys))
    assert all(ours[0][name] is start[name] for name in task.params if name not in names)


def test_regression_and_examples_without_an_answer(way):
    task, data = build(objective=Regression()), examples(1)
    data = data._replace(y=data.x.sum((1, 2)))
    same(local_sgd(task, task.initial, data, 5, 0.1, 4), by_tape(task, task.initial, data, 5, 0.1, 4))
    task, data = build(), examples(1)
    data = data._replace(y=torch.tensor([0, -1, 2, 3, -1, 1]))
    same(local_sgd(task, task.initial, data, 5, 0.1), by_tape(task, task.initial, data, 5, 0.1))


RATES: dict[str, Any] = {
    "number": lambda _: 0.2,
    "own": lambda own: own,
    "decaying": lambda _: lambda step: 0.2 * 0.8**step,
    "own and decaying": lambda own: lambda step: own * 0.8**step,
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("batch", [0, 2, 4])
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3], OPTIONS[-1]], ids=str)
def test_many_clients_at_once_equal_autograd_for_each(options, batch, padding, rate, way):
    task = build()
    sizes = (6, 4, 3) if padding else (6, 6, 6)
    clients = [examples(seed, size, 6 - size) for seed, size in enumerate(sizes)]
    starts, rates = [tree(task, seed) for seed in range(3)], torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    shared = pick_shared(starts[0])
    keys = keys_of(task, options, starts[0])
    data = Data(*(torch.stack(part) for part in zip(*clients, strict=True)))
    axes: Any = Data(0, 0, 0, 0, 0)
    if not padding:
        data, axes = data._replace(mask=data.mask[0]), axes._replace(mask=None)
    for steps in (3, Epochs(1), Epochs(2)):

        def update(shared, own, data, gamma, steps=steps):
            return local_sgd(task, {**own, **shared}, data, steps, RATES[rate](gamma), batch, **keys)

        together = vmap(update, in_dims=(None, 0, axes, 0))(shared, stack(starts), data, rates)
        for row, (client, own) in enumerate(zip(clients, starts, strict=True)):
            with CountFlops():
                alone = update(shared, own, client, rates[row])
            same(({name: value[row] for name, value in together[0].items()}, together[1][row]), alone)


def pick_shared(params: Tree) -> Tree:
    """Return the body, which all clients have in common."""
    return {name: value for name, value in params.items() if name.startswith("body")}


def test_nothing_that_was_given_changes(way):
    task, data = build(), examples(1)
    start, centre, control = tree(task, 3), tree(task, 4), tree(task, 5)
    before = [{name: value.clone() for name, value in each.items()} for each in (start, centre, control)]
    x = data.x.clone()
    local_sgd(task, start, data, 5, 0.2, 4, pull=Pull(0.3, centre), control=control, momentum=0.5)
    torch.testing.assert_close([start, centre, control], before, rtol=0, atol=0)
    assert torch.equal(data.x, x)


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    layer = nn.Linear(FEATURES, 5)
    layer.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return layer


def frozen() -> nn.Module:
    layer = nn.Linear(FEATURES, 5)
    layer.bias.requires_grad_(False)
    return layer


shared_layer = nn.Linear(FEATURES, FEATURES)


@pytest.mark.parametrize(
    "body",
    [
        lambda: [Twice(FEATURES, 5)],
        lambda: [hooked()],
        lambda: [frozen()],
        lambda: [nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, 5))],
        lambda: [nn.Linear(FEATURES, 5), nn.BatchNorm1d(5)],
        lambda: [nn.Linear(FEATURES, 5), nn.Dropout(0.5)],
        lambda: [nn.ReLU(), nn.Linear(FEATURES, 5)],
        lambda: [shared_layer, nn.ReLU(), shared_layer, nn.Linear(FEATURES, 5)],
        lambda: [nn.Linear(FEATURES, 5), nn.Softmax(1)],
    ],
    ids=["subclass", "hook", "frozen", "parametrized", "norm", "dropout", "function first", "tied", "not pointwise"],
)
def test_other_models_are_no_chain(body):
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(*body()))
    net.add_module("head", nn.Linear(5, CLASSES))
    task = Task(net.double(), "head", torch.zeros(1, FEATURES, dtype=torch.float64))
    assert task.chain is None


def test_a_bare_linear_layer_is_a_chain():
    task = Task(nn.Linear(FEATURES, CLASSES).double(), "", torch.zeros(1, FEATURES, dtype=torch.float64))
    assert task.chain
    data = examples(1)._replace(x=examples(1).x.flatten(1))
    same(local_sgd(task, task.initial, data, 3, 0.2, 4), by_tape(task, task.initial, data, 3, 0.2, 4))


def test_the_span_is_used_where_it_needs_fewer_operations():
    """Two full passes are products of 6 x 9 x 5 in both directions; a Gram matrix of 6 x 6 pays from a few steps on."""
    task, data = build(), examples(1)
    counted = {}
    for steps in (1, 50):
        with CountFlops(executed=True) as executed:
            local_sgd(task, task.initial, data, steps, 0.2)
        with CountFlops() as naive:
            local_sgd(task, task.initial, data, steps, 0.2)
        counted[steps] = executed.total / naive.total
    assert counted[1] == pytest.approx(1)
    assert counted[50] < 0.75


@pytest.mark.parametrize("layers", LAYERS)
def test_a_pass_through_the_body_reads_the_examples_where_they_are(layers, monkeypatch):
    task, start = build(layers), tree(build(layers), 3)
    x = examples(1, 12).x
    parts = [x[:5], x[5:6], x[6:]]
    features, pull_back, buffers = task.body_vjp(start, x)
    g = torch.randn(features.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    monkeypatch.setattr(torch, "cat", lambda *_: pytest.fail("a common copy was made"))
    ours, our_pull_back, our_buffers = body_pass(task, start, parts if layers != "logreg" else [x])
    assert (our_buffers, buffers) == ({}, {})
    torch.testing.assert_close(ours, features, **CLOSE)
    torch.testing.assert_close(our_pull_back(g)[0], pull_back(g)[0], **CLOSE)


# -- models that end in dense layers


def build_conv(norm: bool) -> Task:
    """Return a convolutional network with two dense layers at its end."""
    torch.manual_seed(0)
    front = [
        nn.Unflatten(1, (1, 3)),
        nn.Conv2d(1, 2, 2),
        *([nn.BatchNorm2d(2)] if norm else []),
        nn.ReLU(),
        nn.Flatten(),
    ]
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(*front, nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5)))
    net.add_module("head", nn.Linear(5, CLASSES))
    return Task(net.double(), "head", torch.zeros(1, 3, FEATURES // 3, dtype=torch.float64))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("over", ["params", "body", "head"])
@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[3], OPTIONS[-1]], ids=str)
def test_a_dense_tail_equals_autograd(options, over, norm, monkeypatch):
    task = build_conv(norm)
    assert task.chain is None
    assert [type(layer).__name__ for layer in task.tail] == ["Dense", "Pointwise", "Dense", "Dense"]
    assert set(task.front_params) == {name for name in task.body if int(name.split(".")[1]) < 4}
    taken, original = [], dense_layers._Taped.__init__
    monkeypatch.setattr(dense_layers._Taped, "__init__", lambda *args: taken.append(1) or original(*args))
    start = {**task.initial, **tree(task, 3)}
    names = getattr(task, over)
    keys = keys_of(task, options, start)
    keys["control"] = {name: keys["control"][name] for name in names} if keys["control"] else None
    for batch, steps in ((0, 3), (4, 5), (5, Epochs(2))):
        ours = local_sgd(task, start, examples(1), steps, 0.2, batch, over=names, **keys)
        same(ours, by_tape(task, start, examples(1), steps, 0.2, batch, over=names, **keys))
    assert len(taken) == 3
    if norm:
        assert not torch.equal(ours[0][task.buffers[0]], start[task.buffers[0]])


# -- linear heads on fixed features


def heads_on_features(outputs: int, bias: bool, objective: Objective) -> tuple[Task, list[Tree], list[Data]]:
    """Return a task whose body does nothing, and three clients with padding and an example without an answer."""
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("body", nn.Identity())
    net.add_module("head", nn.Linear(FEATURES, outputs, bias=bias))
    task = Task(net.double(), "head", torch.zeros(1, FEATURES, dtype=torch.float64), objective=objective)
    clients = [examples(seed, size, 6 - size) for seed, size in enumerate((6, 4, 3))]
    if isinstance(objective, Classification):
        clients = [client._replace(y=client.y % outputs) for client in clients]
        clients[0].y[1] = -1
    else:
        clients = [client._replace(y=client.x.sum((1, 2))) for client in clients]
    return task, [tree(task, seed) for seed in range(3)], clients


KINDS = [
    pytest.param(outputs, bias, objective, id=f"{outputs} {type(objective).__name__}{'' if bias else ' no bias'}")
    for outputs, objective in [(1, CLASSIFIES), (2, CLASSIFIES), (3, CLASSIFIES), (1, Regression())]
    for bias in (False, True)
]


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("mu", [0.0, 0.4])
@pytest.mark.parametrize(("outputs", "bias", "objective"), KINDS)
def test_heads_in_closed_form_equal_autograd(outputs, bias, momentum, mu, objective):
    """Also under vmap, with padding, examples without an answer, and rates of each client's own."""
    task, heads, clients = heads_on_features(outputs, bias, objective)
    rates = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)

    def update(head, data, rate):
        return head_descent(task, head, data.x.flatten(1), data, 5, rate, momentum, mu=mu)

    data = Data(*(torch.stack(part) for part in zip(*clients, strict=True)))
    together = vmap(update)(stack(heads), data, rates)
    for row, (client, head) in enumerate(zip(clients, heads, strict=True)):
        alone = update(head, client, rates[row])
        with CountFlops():
            by_autograd = update(head, client, rates[row])
        torch.testing.assert_close(alone, by_autograd, **CLOSE)
        torch.testing.assert_close({name: value[row] for name, value in together.items()}, by_autograd, **CLOSE)
        assert not any(torch.equal(value, head[name]) for name, value in alone.items()) or outputs == 1


@pytest.mark.parametrize("over_head", [False, True])
@pytest.mark.parametrize(("outputs", "bias", "objective"), KINDS)
def test_gradients_and_losses_of_heads_in_closed_form_equal_autograd(outputs, bias, over_head, objective, monkeypatch):
    task, heads, clients = heads_on_features(outputs, bias, objective)
    differentiated = []
    by_tape = steps_head.grad_and_value
    monkeypatch.setattr(steps_head, "grad_and_value", lambda *a, **k: differentiated.append(1) or by_tape(*a, **k))

    def found(head, data):
        features = data.x.flatten(1)
        gradients = head_gradient(task, head, features, data, over_head=over_head)
        return (*gradients, head_loss(task, head, features, data))

    data = Data(*(torch.stack(part) for part in zip(*clients, strict=True)))
    g_heads, *others = vmap(found)(stack(heads), data)
    for row, (client, head) in enumerate(zip(clients, heads, strict=True)):
        alone = found(head, client)
        assert not differentiated
        with CountFlops():
            expected = found(head, client)
        assert differentiated.pop()
        assert expected[0].keys() == (head.keys() if over_head else set())
        torch.testing.assert_close(alone, expected, **CLOSE)
        mine = ({name: value[row] for name, value in g_heads.items()}, *(value[row] for value in others))
        torch.testing.assert_close(mine, expected, **CLOSE)
