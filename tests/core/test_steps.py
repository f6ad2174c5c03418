import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie import streams
from coterie.core.data import Data
from coterie.core.steps import adam_memory, head_descent, local_sgd, minibatch
from coterie.core.steps.server import adam
from coterie.core.task import Task
from coterie.core.tree import pick

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def numbered(n: int, client: int = 0, padding: int = 0) -> Data:
    """Return examples whose x and y are their number. Padding has the number -1."""
    numbers = torch.cat([torch.arange(n), torch.full((padding,), -1)])
    stream = torch.tensor(streams.key(0, "batches", 1, str(client)))
    return Data(numbers[:, None].double(), numbers, numbers >= 0, torch.ones(1, dtype=torch.bool), stream)


def chosen(batch: Data) -> list[int]:
    return batch.y[batch.mask].tolist()


def softmax_task(num_inputs: int, num_outputs: int) -> Task:
    net = nn.Sequential()
    net.add_module("body", nn.Flatten())
    net.add_module("head", nn.Linear(num_inputs, num_outputs))
    return Task(net.double(), "head", torch.zeros(1, num_inputs, dtype=torch.float64))


def problem(num_examples: int = 12, num_inputs: int = 3, num_outputs: int = 4, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(num_examples, num_inputs)), rng.integers(num_outputs, size=num_examples)
    mask = torch.ones(num_examples, dtype=torch.bool)
    classes = torch.ones(num_outputs, dtype=torch.bool)
    return Data(torch.from_numpy(x), torch.from_numpy(y), mask, classes, torch.tensor(streams.key(seed, "batches")))


def softmax_regression_step(
    W: NDArray[np.float64], b: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.int64], rate: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Take one step of gradient descent on the mean cross-entropy. Returns (W, b, loss before the step)."""
    scores = x @ W.T + b
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    error = (p - np.eye(len(b))[y]) / len(y)
    return W - rate * error.T @ x, b - rate * error.sum(axis=0), float(loss)


# -- minibatches


@settings(deadline=None)
@given(st.integers(2, 40), st.data(), st.integers(0, 5), st.integers(0, 3))
def test_each_epoch_deals_every_example_once_and_no_padding(
    n: int, data: st.DataObject, padding: int, client: int
) -> None:
    size = data.draw(st.integers(1, n - 1))
    examples = numbered(n, client, padding)
    steps = -(-n // size)
    for epoch in range(3):
        batches = [minibatch(examples, size, epoch * steps + step) for step in range(steps)]
        assert sorted(number for batch in batches for number in chosen(batch)) == list(range(n))
        assert [len(chosen(batch)) for batch in batches] == [size] * (steps - 1) + [n - size * (steps - 1)]
        for batch in batches:
            assert len(batch.y) == (size if padding else len(chosen(batch)))
            assert torch.equal(batch.x[:, 0].long(), batch.y)
            assert batch.stream == examples.stream


def test_each_epoch_and_each_client_has_a_shuffle_of_its_own() -> None:
    def epoch(client: int, index: int) -> tuple[int, ...]:
        examples = numbered(20, client)
        return tuple(number for step in range(4) for number in chosen(minibatch(examples, 5, 4 * index + step)))

    orders = {epoch(client, index) for client in range(5) for index in range(5)}
    assert len(orders) == 25
    assert tuple(range(20)) not in orders


def test_every_example_is_equally_likely_to_be_first() -> None:
    draws = 6000
    first = [chosen(minibatch(numbered(6, client), 1, 0))[0] for client in range(draws)]
    counts = np.bincount(first, minlength=6)
    assert np.abs(counts - draws / 6).max() < 5 * (draws * (1 / 6) * (5 / 6)) ** 0.5


@pytest.mark.parametrize("size", [0, 7, 8, 1000])
@pytest.mark.parametrize("step", [0, 1, 9])
def test_a_batch_of_all_is_all_in_order(size: int, step: int) -> None:
    batch = minibatch(numbered(7), size, step)
    assert chosen(batch) == list(range(7))


@pytest.mark.parametrize("size", [3, 5])
def test_a_size_between_the_examples_and_the_padding_gives_all_examples(size: int) -> None:
    for step in range(4):
        assert sorted(chosen(minibatch(numbered(3, padding=4), size, step))) == [0, 1, 2]


def test_a_short_batch_weighs_its_examples_alone() -> None:
    task, examples = softmax_task(3, 4), problem(num_examples=5)
    short = minibatch(examples, 3, 1)
    kept = short._replace(x=short.x[short.mask], y=short.y[short.mask], mask=torch.ones(2, dtype=torch.bool))
    assert len(kept.y) == short.mask.sum() == 2
    torch.testing.assert_close(task.loss(task.initial, short)[0], task.loss(task.initial, kept)[0], **CLOSE)


def test_padded_clients_under_vmap_draw_the_batches_they_draw_alone() -> None:
    sizes, longest, batch = [3, 10, 7, 4], 10, 4
    padded = [numbered(n, client, longest - n) for client, n in enumerate(sizes)]
    cohort = Data(*(torch.stack(parts) for parts in zip(*padded, strict=True)))
    for step in range(8):
        together = torch.func.vmap(lambda data, step=step: minibatch(data, batch, step))(cohort)
        for client, n in enumerate(sizes):
            mine = Data(*(part[client] for part in together))
            alone = minibatch(numbered(n, client), batch, step)
            assert sorted(chosen(mine)) == sorted(chosen(alone))
            assert (mine.y[mine.mask] >= 0).all()
            assert torch.equal(mine.x[:, 0].long(), mine.y)


# -- local steps


@pytest.mark.parametrize("rates", [[0.5], [0.3, 0.2, 0.1], [0.1] * 20])
def test_local_sgd_is_gradient_descent_on_softmax_regression(rates: list[float]) -> None:
    task, data = softmax_task(3, 4), problem()
    W, b = task.initial["head.weight"].numpy().copy(), task.initial["head.bias"].numpy().copy()
    for rate in rates:
        W, b, expected_loss = softmax_regression_step(W, b, data.x.numpy(), data.y.numpy(), rate)
    after, loss = local_sgd(task, task.initial, data, len(rates), rates.__getitem__)
    torch.testing.assert_close(after["head.weight"], torch.from_numpy(W), **CLOSE)
    torch.testing.assert_close(after["head.bias"], torch.from_numpy(b), **CLOSE)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-12)


def test_local_sgd_on_minibatches_takes_them_in_turn() -> None:
    task, data = softmax_task(3, 4), problem(num_examples=11)
    W, b = task.initial["head.weight"].numpy().copy(), task.initial["head.bias"].numpy().copy()
    for step in range(7):
        batch = minibatch(data, 4, step)
        keep = batch.mask.numpy()
        W, b, expected_loss = softmax_regression_step(W, b, batch.x.numpy()[keep], batch.y.numpy()[keep], 0.3)
    after, loss = local_sgd(task, task.initial, data, 7, 0.3, 4)
    torch.testing.assert_close(after["head.weight"], torch.from_numpy(W), **CLOSE)
    torch.testing.assert_close(after["head.bias"], torch.from_numpy(b), **CLOSE)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-12)


def test_local_sgd_moves_only_what_it_is_told_to_and_mutates_nothing() -> None:
    task, data = softmax_task(3, 4), problem()
    before = {name: value.clone() for name, value in task.initial.items()}
    after, _ = local_sgd(task, {**task.initial, "other": torch.ones(1)}, data, 2, 0.5, over=["head.bias"])
    assert after.keys() == {*before, "other"}
    assert torch.equal(after["head.weight"], before["head.weight"])
    assert not torch.equal(after["head.bias"], before["head.bias"])
    assert all(torch.equal(task.initial[name], before[name]) for name in before)


def test_local_sgd_without_steps_is_where_it_started() -> None:
    task, data = softmax_task(3, 4), problem()
    after, _ = local_sgd(task, task.initial, data, 0, 0.5)
    assert all(torch.equal(after[name], task.initial[name]) for name in task.initial)


def test_local_sgd_carries_batch_norm_statistics_from_step_to_step() -> None:
    net = nn.Sequential()
    net.add_module("norm", nn.BatchNorm1d(3, momentum=0.1))
    net.add_module("head", nn.Linear(3, 4))
    task, data = Task(net.double(), "head", torch.zeros(1, 3, dtype=torch.float64)), problem()
    after, _ = local_sgd(task, task.initial, data, 3, 0.1)
    # All steps have the same inputs, so the mean is approached by a geometric series.
    torch.testing.assert_close(after["norm.running_mean"], (1 - 0.9**3) * data.x.mean(dim=0), **CLOSE)
    assert after["norm.num_batches_tracked"].item() == 3


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_head_descent_is_local_sgd_where_the_body_has_no_parameters(steps: int) -> None:
    task, data = softmax_task(3, 4), problem()
    head = head_descent(task, task.initial, data.x, data, steps, 0.7)
    expected, _ = local_sgd(task, task.initial, data, steps, 0.7)
    torch.testing.assert_close(head, expected, **CLOSE)


def test_head_descent_on_given_features_is_gradient_descent() -> None:
    net = nn.Sequential()
    net.add_module("body", nn.Linear(5, 3))
    net.add_module("head", nn.Linear(3, 4))
    task, data = Task(net.double(), "head", torch.zeros(1, 5, dtype=torch.float64)), problem()
    W, b = task.initial["head.weight"].numpy().copy(), task.initial["head.bias"].numpy().copy()
    for _ in range(3):
        W, b, _ = softmax_regression_step(W, b, data.x.numpy(), data.y.numpy(), 0.4)
    head = head_descent(task, pick(task.initial, task.head), data.x, data, 3, 0.4)
    assert head.keys() == {"head.weight", "head.bias"}
    torch.testing.assert_close(head["head.weight"], torch.from_numpy(W), **CLOSE)
    torch.testing.assert_close(head["head.bias"], torch.from_numpy(b), **CLOSE)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("classes", [1, 2, 4])
def test_the_known_gradient_of_a_linear_head_is_the_derived_one(classes: int, bias: bool) -> None:
    """They agree with padding and for any number of classes."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, classes, bias=bias))
    task = Task(net.double(), "1", torch.zeros(1, 3, dtype=torch.float64))
    data = problem(num_outputs=classes)._replace(mask=torch.arange(12) < 9)
    assert task.head_is_linear
    known = head_descent(task, task.initial, data.x, data, 3, 0.7)
    task.head_is_linear = False
    derived = head_descent(task, task.initial, data.x, data, 3, 0.7)
    torch.testing.assert_close(known, derived, **CLOSE)
    assert classes == 1 or not torch.equal(known["1.weight"], task.initial["1.weight"])


# -- Adam


def test_adam_is_torchs_adam() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw() -> dict[str, Tensor]:
        shapes = {"a": (3, 2), "b": (4,), "c": ()}
        return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}

    params = draw()
    reference = {name: nn.Parameter(value.clone()) for name, value in params.items()}
    optimizer = torch.optim.Adam(reference.values(), lr=0.03)
    memory = adam_memory(params)
    for scale in (1.0, 1e-9, 100.0, 0.0, 1.0, 1.0):
        gradient = {name: scale * value for name, value in draw().items()}
        for name, value in reference.items():
            value.grad = gradient[name].clone()
        optimizer.step()
        params, memory = adam(params, memory, gradient, 0.03)
        for name, value in reference.items():
            torch.testing.assert_close(params[name], value.detach(), **CLOSE)
    assert memory[".t"].item() == 6


def test_adams_first_step_is_the_rate_times_the_sign() -> None:
    params = {"a": torch.zeros(3, dtype=torch.float64)}
    gradient = {"a": torch.tensor([5.0, -0.01, 300.0], dtype=torch.float64), "loss": torch.tensor(1.0)}
    after, _ = adam(params, adam_memory(params), gradient, 0.1)
    expected = torch.tensor([-0.1, 0.1, -0.1], dtype=torch.float64)
    torch.testing.assert_close(after["a"], expected, rtol=2e-6, atol=0)
    assert after.keys() == {"a"}


def test_adam_mutates_neither_parameters_nor_memory() -> None:
    params = {"a": torch.ones(2)}
    memory = adam_memory(params)
    adam(params, memory, {"a": torch.ones(2)}, 0.1)
    assert params["a"].tolist() == [1.0, 1.0]
    assert all(not value.any() for value in memory.values())
