import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.functional import cross_entropy

from coterie.core.data import Data
from coterie.core.task import Task
from coterie.core.tree import Tree, pick
from coterie.errors import UserError
from coterie.measure.probe import Probe
from coterie.models.module import Own

EXACT = {"rtol": 0.0, "atol": 0.0}
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


class Nested(nn.Module):
    """A network whose head is two levels down, with a name that another name begins with."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.ModuleDict({"fc2": nn.Linear(3, 5), "fc": nn.Linear(5, 4)})

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.outer["fc"](torch.tanh(self.outer["fc2"](x)))
        return outputs


def in_sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


def deep_head() -> nn.Module:
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Linear(3, 5), nn.Tanh()))
    net.add_module("head", nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4, bias=False)))
    return net


def normalized() -> nn.Module:
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh()))
    net.add_module("head", nn.Linear(5, 4))
    return net


NETS = [(Nested, "outer.fc"), (in_sequential, "2"), (deep_head, "head"), (normalized, "head"), (in_sequential, "")]
nets = pytest.mark.parametrize(("build", "head"), NETS, ids=["nested", "sequential", "deep head", "norm", "no head"])
example = torch.ones(1, 3, dtype=torch.float64)


def test_a_task_does_not_keep_the_pool_that_its_example_is_from():
    """Otherwise a task that outlives its run would keep all data in memory."""
    pool = torch.ones(1000, 3, dtype=torch.float64)
    task = Task(made(Nested), "outer.fc", pool[:1])
    assert task._example.untyped_storage().nbytes() == 3 * 8


def made(build: type[nn.Module], seed: int = 0) -> nn.Module:
    """Return the network in float64, with every buffer away from its usual initial value."""
    torch.manual_seed(seed)
    net = build().double()
    for buffer in net.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return net


def data(n: int = 7, outputs: int = 4, seed: int = 1) -> Data:
    rng = np.random.default_rng(seed)
    x, y = torch.from_numpy(rng.normal(size=(n, 3))), torch.from_numpy(rng.integers(outputs, size=n))
    return Data(x, y, torch.ones(n, dtype=torch.bool), torch.ones(5, dtype=torch.bool), torch.tensor(0))


def state(net: nn.Module) -> Tree:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


# -- the model as a function


@nets
def test_outputs_are_the_modules_own(build: type[nn.Module], head: str) -> None:
    net, other = made(build), made(build, seed=1)
    task = Task(net, head, example)
    x = data().x
    torch.testing.assert_close(task.outputs(task.initial, x), net.eval()(x), **CLOSE)
    torch.testing.assert_close(task.outputs(state(other), x), other.eval()(x), **CLOSE)


@nets
def test_the_callers_module_is_left_as_it_was(build: type[nn.Module], head: str) -> None:
    net = made(build).train()
    before = state(net)
    task = Task(net, head, example)
    task.loss(task.initial, data())
    task.module({name: value + 1 for name, value in task.initial.items()})
    torch.testing.assert_close(state(net), before, **EXACT)
    assert all(module.training for module in net.modules())
    with torch.no_grad():
        next(net.parameters()).add_(1)
    torch.testing.assert_close(task.initial, before, **EXACT)


@nets
def test_parameters_are_told_apart_by_body_and_head(build: type[nn.Module], head: str) -> None:
    net = made(build)
    task = Task(net, head, example)
    names = [name for name, _ in net.named_parameters()]
    assert sorted(task.params) == sorted(names)
    assert set(task.head) == {name for name in names if head and name.startswith(f"{head}.")}
    assert task.shared_model().keys() == state(net).keys()
    assert task.shared_body().keys() == state(net).keys() - set(task.head)


@nets
def test_the_loss_and_its_gradient_are_the_modules_own(build: type[nn.Module], head: str) -> None:
    net, examples = made(build).train(), data()
    task = Task(net, head, example)
    expected = cross_entropy(net(examples.x), examples.y)
    expected.backward()
    theta = pick(task.initial, task.params)
    gradient, _ = grad(lambda theta: task.loss({**task.initial, **theta}, examples), has_aux=True)(theta)
    loss, _ = task.loss(task.initial, examples)
    torch.testing.assert_close(loss, expected.detach(), **CLOSE)
    torch.testing.assert_close(gradient, {name: value.grad for name, value in net.named_parameters()}, **CLOSE)


@nets
def test_the_gradient_pulled_back_through_the_body_is_that_of_the_whole(build: type[nn.Module], head: str) -> None:
    net, examples = made(build).train(), data()
    task = Task(net, head, example)
    cross_entropy(net(examples.x), examples.y).backward()
    features, pull_back, _ = task.body_vjp(task.initial, examples.x)
    W = pick(task.initial, task.head)
    g_W, g_features = grad(task.head_loss, argnums=(0, 1))(W, features, examples)
    (g,) = pull_back(g_features)
    expected = {name: value.grad for name, value in net.named_parameters()}
    assert g.keys() == set(task.body)
    torch.testing.assert_close({**g, **g_W}, expected, **CLOSE)


def test_the_features_are_what_enters_the_head() -> None:
    net = made(in_sequential)
    task = Task(net, "2", example)
    features, _, _ = task.body_vjp(task.initial, data().x)
    torch.testing.assert_close(features, net[:2](data().x).detach(), **CLOSE)


def test_padding_counts_for_nothing_in_the_loss() -> None:
    examples = data(5)
    task = Task(made(in_sequential), "2", example)
    padding = torch.full((3, 3), 1e6, dtype=torch.float64)
    mask = torch.tensor([True] * 5 + [False] * 3)
    y = torch.cat([examples.y, torch.tensor([3, 0, 0])])
    padded = examples._replace(x=torch.cat([examples.x, padding]), y=y, mask=mask)
    theta = pick(task.initial, task.params)
    results = [grad(task.loss, has_aux=True)(theta, each)[0] for each in (examples, padded)]
    torch.testing.assert_close(*results, **CLOSE)
    torch.testing.assert_close(task.loss(theta, padded), task.loss(theta, examples), **CLOSE)
    # By hand, it is the mean of -log softmax over the five examples.
    scores = task.outputs(theta, examples.x).numpy()
    each = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(5), examples.y.numpy()]
    assert task.loss(theta, padded)[0].item() == pytest.approx(each.mean(), rel=1e-12)


def test_losses_are_each_examples_own_and_the_loss_is_their_mean() -> None:
    net, examples = made(normalized).train(), data(6)
    examples = examples._replace(mask=torch.arange(6) != 2)
    task = Task(net, "head", example)
    losses, buffers = task.losses(task.initial, examples)
    loss, same = task.loss(task.initial, examples)
    expected = torch.where(examples.mask, cross_entropy(net(examples.x), examples.y, reduction="none"), 0)
    torch.testing.assert_close(losses, expected.detach(), **CLOSE)
    torch.testing.assert_close(losses.sum() / 5, loss, **CLOSE)
    torch.testing.assert_close(buffers, same, **EXACT)


def test_the_loss_of_a_sequence_is_the_sum_over_its_positions() -> None:
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5)).double(), "1", torch.zeros(1, 4, dtype=torch.int64))
    x, y = torch.arange(12).reshape(3, 4) % 5, torch.arange(12).reshape(3, 4) % 4
    y[1, 2:] = -1  # nothing to answer
    examples = Data(x, y, torch.tensor([True, True, False]), torch.ones(5, dtype=torch.bool), torch.tensor(0))
    losses, _ = task.losses(task.initial, examples)
    log_p = task.outputs(task.initial, x).log_softmax(-1)
    first, second = (-sum(log_p[n, t, y[n, t]] for t in range(length)) for n, length in ((0, 4), (1, 2)))
    torch.testing.assert_close(losses, torch.stack([first, second, torch.zeros_like(first)]), **CLOSE)


# -- heads


@nets
def test_heads_come_in_any_size(build: type[nn.Module], head: str) -> None:
    if not head:
        return
    task = Task(made(build), head, example)
    for outputs in (1, 2, 4, 9):
        fresh = task.new_head(outputs, seed=3)
        assert fresh.keys() == set(task.head)
        assert all(value.dtype == torch.float64 and not value.requires_grad for value in fresh.values())
        model = {**task.shared_body(), **fresh}
        assert task.outputs(model, data().x).shape == (7, outputs)
        assert task.loss(model, data(outputs=outputs))[0].isfinite()
    assert task.initial[task.head[-1]].shape[0] == 4


def test_a_head_is_a_function_of_its_seed() -> None:
    task = Task(made(deep_head), "head", example)
    first, again, other = task.new_head(3, 5), task.new_head(3, 5), task.new_head(3, 6)
    torch.testing.assert_close(first, again, **EXACT)
    assert all(not torch.equal(first[name], other[name]) for name in first)
    state_before = torch.get_rng_state()
    task.new_head(3, 7)
    assert torch.equal(torch.get_rng_state(), state_before)


def test_a_head_does_not_depend_on_the_weights_of_the_model() -> None:
    heads = [Task(made(deep_head, seed), "head", example).new_head(3, 5) for seed in (0, 1)]
    torch.testing.assert_close(*heads, **EXACT)


def test_a_head_is_drawn_as_torch_draws_a_linear_layer() -> None:
    task = Task(made(in_sequential), "2", example)
    W = torch.cat([task.new_head(50, seed)["2.weight"].flatten() for seed in range(40)])
    limit = 1 / 5**0.5  # of a uniform distribution, with M = 5 features
    assert W.abs().max() <= limit
    assert W.abs().max() > 0.99 * limit
    assert abs(W.mean()) < 5 * limit / (3 * len(W)) ** 0.5


def test_a_model_without_a_head_has_no_new_one() -> None:
    task = Task(made(in_sequential), "", example)
    assert task.head == ()
    with pytest.raises(
        UserError, match=r"needs a model with a head.*coterie\.train\(\.\.\., head=\.\.\.\).*from `coterie"
    ):
        task.new_head(3, 0)


# -- buffers


def assert_buffers_follow(task: Task, reference: nn.Module, buffers: Tree) -> None:
    expected = {name: value.clone() for name, value in reference.named_buffers()}
    assert buffers.keys() == expected.keys() == set(task.buffers)
    torch.testing.assert_close(buffers, expected, **CLOSE)


def test_batch_norm_statistics_are_returned_as_training_leaves_them_and_nothing_is_mutated() -> None:
    net = made(normalized).train()
    task = Task(net, "head", example)
    params = {name: value.clone() for name, value in task.initial.items()}
    before = {name: value.clone() for name, value in params.items()}
    _, from_loss = task.loss(params, data())
    _, pull_back, from_vjp = task.body_vjp(params, data().x)
    pull_back(torch.ones(7, 5, dtype=torch.float64))
    net(data().x)
    assert_buffers_follow(task, net, from_loss)
    assert_buffers_follow(task, net, from_vjp)
    assert from_loss["body.1.num_batches_tracked"].item() == 1
    torch.testing.assert_close(params, before, **EXACT)
    torch.testing.assert_close(task.initial, before, **EXACT)


def test_batch_norm_statistics_go_from_pass_to_pass() -> None:
    net = made(normalized).train()
    task = Task(net, "head", example)
    params = task.initial
    for seed in range(3):
        _, buffers = task.loss(params, data(seed=seed))
        params = {**params, **buffers}
        net(data(seed=seed).x)
    assert_buffers_follow(task, net, buffers)
    torch.testing.assert_close(task.outputs(params, data().x), net.eval()(data().x), **CLOSE)


def test_evaluation_uses_the_trees_statistics_and_leaves_them() -> None:
    task = Task(made(normalized), "head", example)
    moved = {**task.initial, "body.1.running_mean": task.initial["body.1.running_mean"] + 1}
    before = {name: value.clone() for name, value in moved.items()}
    assert not torch.allclose(task.outputs(moved, data().x), task.outputs(task.initial, data().x))
    torch.testing.assert_close(moved, before, **EXACT)


def test_buffers_travel_or_stay_by_policy() -> None:
    net = made(normalized)
    buffers = {"body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}
    average, local = (Task(net, "head", example, policy) for policy in ("average", "local"))
    assert average.shared_model().keys() == state(net).keys()
    assert average.personal_buffers() == {}
    assert average.shared_body().keys() >= buffers
    assert local.personal_buffers().keys() == buffers
    assert local.shared_model().keys() == state(net).keys() - buffers
    assert local.shared_body().keys() == set(local.body)
    torch.testing.assert_close({**local.shared_model(), **local.personal_buffers()}, state(net), **EXACT)


# -- frozen parameters


def test_frozen_parameters_are_constants_that_never_travel() -> None:
    net = made(deep_head)
    net.body[0].weight.requires_grad_(False)
    task = Task(net, "head", example)
    trained = {"body.0.bias", "head.0.weight", "head.0.bias", "head.2.weight"}
    assert task.initial.keys() == task.shared_model().keys() == trained
    assert task.body == ("body.0.bias",)
    torch.testing.assert_close(task.outputs(task.initial, data().x), net(data().x).detach(), **CLOSE)
    moved = {name: value + 1 for name, value in task.initial.items()}
    net.load_state_dict(moved, strict=False)
    torch.testing.assert_close(task.outputs(moved, data().x), net(data().x).detach(), **CLOSE)
    torch.testing.assert_close(task.module(moved)(data().x), net(data().x), **CLOSE)


def test_frozen_parameters_of_a_head_stay_out_of_a_new_one() -> None:
    net = made(deep_head)
    net.head[0].requires_grad_(False)
    task = Task(net, "head", example)
    assert task.head == ("head.2.weight",)
    assert task.new_head(3, 0).keys() == set(task.head)


# -- cuts that cannot be made


def test_a_head_that_is_not_there_is_refused_with_what_there_is() -> None:
    with pytest.raises(UserError, match=r"no submodule 'classifier' .*: outer, outer\.fc2, outer\.fc"):
        Task(made(Nested), "classifier", example)


@pytest.mark.parametrize(("build", "head"), [(Nested, "outer.fc2"), (in_sequential, "0")])
def test_a_head_that_is_not_the_last_layer_is_refused(build: type[nn.Module], head: str) -> None:
    torch.manual_seed(0)
    net = build().double()
    square = nn.Linear(3, 3).double()  # so that shapes do not tell
    if isinstance(net, Nested):
        net.outer["fc2"], net.outer["fc"] = square, copy.deepcopy(square)
    else:
        net[0], net[2] = square, copy.deepcopy(square)
    with pytest.raises(UserError, match=rf"not its head '{head}' applied to the rest"):
        Task(net, head, example)


def test_a_head_with_batch_norm_is_refused() -> None:
    net = nn.Sequential()
    net.add_module("body", nn.Linear(3, 5))
    net.add_module("head", nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4)))
    with pytest.raises(UserError, match=r"head 'head' has buffers"):
        Task(net.double(), "head", example)


def test_a_head_without_a_linear_layer_cannot_be_sized() -> None:
    task = Task(nn.Sequential(nn.Linear(3, 4), nn.Tanh()).double(), "1", example)
    with pytest.raises(UserError, match=r"head '1' cannot be given 3 outputs: it has no nn\.Linear"):
        task.new_head(3, 0)


class Tied(nn.Module):
    """A network for tokens whose last layer has the weights of the embedding."""

    def __init__(self, tie: str) -> None:
        super().__init__()
        self.words, self.middle, self.head = nn.Embedding(6, 4), nn.Linear(4, 4), nn.Linear(4, 6, bias=False)
        if tie == "head":
            self.head.weight = self.words.weight
        elif tie == "body":
            self.again = nn.Linear(4, 4)
            self.again.weight = self.middle.weight

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.middle(self.words(x)))
        if hasattr(self, "again"):
            features = torch.tanh(self.again(features))
        outputs: Tensor = self.head(features)
        return outputs


WORDS = torch.tensor([[0, 5, 2]])


def build_own(net: nn.Module, head: str) -> nn.Module:
    return Own(net=net, head_name=head).build((3,), 6)


@pytest.mark.parametrize("made_by", [lambda net, head: Task(net, head, WORDS), build_own])
def test_a_head_tied_to_the_body_is_refused(made_by: Callable[[nn.Module, str], object]) -> None:
    with pytest.raises(UserError, match=r'head\.weight of the head is tied to words\.weight of the body.*head=""'):
        made_by(Tied("head"), "head")
    made_by(Tied("head"), "")
    made_by(Tied("body"), "head")


@pytest.mark.parametrize(("tie", "head"), [("body", "head"), ("head", "")])
def test_weights_tied_inside_the_body_stay_one(tie: str, head: str) -> None:
    torch.manual_seed(0)
    net = Tied(tie).double()
    task = Task(net, head, WORDS)
    examples = Data(WORDS, WORDS, torch.tensor([True]), torch.ones(6, dtype=torch.bool), torch.tensor(0))
    cross_entropy(net(WORDS).flatten(0, 1), WORDS.flatten()).backward()
    expected = {name: value.grad for name, value in net.named_parameters()}
    assert len(expected) == len(net.state_dict()) - 1
    gradient, _ = grad(task.loss, has_aux=True)(task.initial, examples)
    torch.testing.assert_close(gradient, expected, **CLOSE)


# -- models that do not fit


class Returns(nn.Module):
    def __init__(self, what: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.head, self.what = nn.Linear(3, 4), what

    def forward(self, x: Tensor) -> object:
        return self.what(self.head(x))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda y: (y, None), "not tuple"),
        (lambda y: {"logits": y}, "not dict"),
        (lambda y: y[:, 0], r"not one of shape \(1,\)"),
        (lambda y: y.mean(), r"not one of shape \(\)"),
    ],
)
def test_a_model_must_return_one_tensor(what: Callable[[Tensor], object], words: str) -> None:
    with pytest.raises(UserError, match=rf"must return one tensor of shape \(N, \.\.\., outputs\), {words}"):
        Task(Returns(what), "head", torch.ones(1, 3))


def test_tokens_that_came_as_numbers_are_suspected() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    hint = "if the inputs are tokens, set tokens=True"
    with pytest.raises(UserError, match=rf"type torch\.float32: .*{hint}"):
        Task(net, "1", torch.ones(1, 4))
    for other, x in ((net, torch.full((1, 4), 5)), (nn.Sequential(nn.Tanh(), nn.Linear(3, 5)), torch.ones(1, 4))):
        with pytest.raises(UserError, match="does not take inputs of shape 4") as raised:
            Task(other, "1", x)
        assert hint not in str(raised.value)


@pytest.mark.parametrize("seed", range(6))
def test_a_recurrent_network_is_its_head_applied_to_the_rest(seed: int) -> None:
    """Autograd changes how it rounds, which must not matter."""
    torch.manual_seed(seed)
    assert Task(Recurrent(), "head", torch.ones(1, 6, 4)).num_outputs == 3


# -- a plain module


@nets
@pytest.mark.parametrize("outputs", [2, 4])
def test_a_module_computes_what_the_task_does(build: type[nn.Module], head: str, outputs: int) -> None:
    net, other = made(build), made(build, seed=1)
    task = Task(net, head, example)
    params = {**state(other), **(task.new_head(outputs, 3) if head else {})}
    module = task.module(params)
    torch.testing.assert_close(module(data().x), task.outputs(params, data().x), **CLOSE)
    assert module(data().x).shape == (7, outputs if head else 4)
    assert type(module) is type(net)
    assert not module.training
    torch.testing.assert_close(dict(module.state_dict()), params, **EXACT)


def test_a_module_is_its_own() -> None:
    task = Task(made(in_sequential), "2", example)
    params = {name: value.clone() for name, value in task.initial.items()}
    expected = task.outputs(params, data().x)
    module = task.module(params)
    with torch.no_grad():
        for value in module.parameters():
            value.zero_()
    torch.testing.assert_close(task.outputs(params, data().x), expected, **EXACT)
    torch.testing.assert_close(task.module(params)(data().x).detach(), expected, **CLOSE)


# -- flops


@pytest.mark.parametrize("outputs", [2, 9])
@pytest.mark.parametrize("width", [(11,), (11, 6)])
def test_flops_of_an_mlp_are_counted_as_by_hand(width: tuple[int, ...], outputs: int) -> None:
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [8, *width]
    for inputs, hidden in zip(widths, width, strict=False):
        layers += [nn.Linear(inputs, hidden), nn.ReLU()]
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(*layers))
    net.add_module("head", nn.Linear(widths[-1], 4))
    flops = Probe(Task(net, "head", torch.zeros(5, 2, 4))).flops(outputs)

    M = widths[-1]
    products = [2 * inputs * hidden for inputs, hidden in zip(widths, width, strict=False)]
    assert flops.body_forward == sum(products)
    # Gradients over the weights of each layer, over the inputs of all layers but the first, and over the features.
    assert flops.body_backward == sum(products) + sum(products[1:]) + 2 * M * outputs
    assert flops.head_step == 2 * M * outputs + 2 * M * outputs


def test_flops_of_logistic_regression_are_all_in_the_head() -> None:
    net = nn.Sequential()
    net.add_module("body", nn.Flatten())
    net.add_module("head", nn.Linear(8, 3))
    flops = Probe(Task(net, "head", torch.zeros(1, 8))).flops(3)
    assert flops.body_forward == 0
    assert flops.head_step == 2 * (2 * 8 * 3)


def test_flops_of_a_convolution_are_counted_as_by_hand() -> None:
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.Flatten()))
    net.add_module("head", nn.Linear(5 * 4 * 4, 3))
    flops = Probe(Task(net, "head", torch.zeros(1, 2, 6, 6))).flops(3)
    convolution = 2 * (2 * 3 * 3) * 5 * (4 * 4)
    assert flops.body_forward == convolution
    assert flops.body_backward == convolution + 2 * 80 * 3
    assert flops.head_step == 2 * (2 * 80 * 3)


def test_a_drawn_head_depends_on_its_seed_and_size_only() -> None:
    """The number of outputs of the shared model does not matter. Drawing leaves the global generator of torch alone."""
    heads = []
    for outputs in (2, 7):
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, outputs))
        before = torch.random.get_rng_state()
        task = Task(net, "1", torch.zeros(1, 4))
        heads.append(task.new_head(2, seed=5))
        task.module({**task.initial, **heads[-1]})
        assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(heads[0]["1.weight"], heads[1]["1.weight"])


# -- what an engine must know


@pytest.mark.parametrize(
    ("layers", "is_random", "mixes"),
    [
        ([nn.Linear(3, 6), nn.ReLU()], False, False),
        ([nn.Linear(3, 6), nn.Dropout(0.5)], True, False),
        ([nn.Linear(3, 6), nn.Dropout(0.0)], False, False),
        ([nn.Linear(3, 6), nn.BatchNorm1d(6)], False, True),
        ([nn.Linear(3, 6), nn.LayerNorm(6)], False, False),
    ],
)
@pytest.mark.parametrize("first", [torch.zeros(1, 3), torch.rand(1, 3, generator=torch.Generator().manual_seed(0))])
def test_it_is_found_out_whether_a_pass_is_random_and_whether_it_mixes(
    layers: list[nn.Module], is_random: bool, mixes: bool, first: Tensor
) -> None:
    """This works for a blank first example too."""
    torch.manual_seed(0)
    task = Task(nn.Sequential(*layers, nn.Linear(6, 2)), str(len(layers)), first)
    assert (task.is_random, task.mixes_examples) == (is_random, mixes)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.lstm(x)[0][:, -1])
        return outputs


class Branches(nn.Module):
    """A network that branches on values of its inputs or of a weight, in training or in evaluation."""

    def __init__(self, on: str, training: bool) -> None:
        super().__init__()
        self.body, self.head, self.on, self.when = nn.Linear(4, 5), nn.Linear(5, 3), on, training

    def forward(self, x: Tensor) -> Tensor:
        if self.training == self.when and (x if self.on == "inputs" else self.body.weight).sum() > 0:
            x = -x
        outputs: Tensor = self.head(self.body(x))
        return outputs


@pytest.mark.parametrize(
    ("net", "head", "runs"),
    [
        (nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), "2", True),
        (nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), "2", True),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 1), nn.Flatten(), nn.Linear(8, 3)), "3", True),
        (nn.Linear(4, 3), "", True),
        (nn.Sequential(nn.Unflatten(1, (1, 4)), Recurrent()), "1.head", False),
        *((Branches(on, training), "head", False) for on in ("inputs", "weight") for training in (True, False)),
    ],
)
def test_it_is_found_out_whether_clients_can_be_computed_at_once(net: nn.Module, head: str, runs: bool) -> None:
    task = Task(net, head, torch.ones(1, 4))
    before, state = {name: value.clone() for name, value in task.initial.items()}, torch.get_rng_state()
    assert Probe(task).runs_batched is runs
    torch.testing.assert_close(task.initial, before, **EXACT)
    assert torch.equal(torch.get_rng_state(), state)


def test_convolutions_are_seen() -> None:
    net = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    assert Probe(Task(net, "3", torch.zeros(1, 4))).has_convolutions
    plain = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    assert not Probe(Task(plain, "1", torch.zeros(1, 4))).has_convolutions
