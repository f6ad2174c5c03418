import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from coterie import Federation
from coterie.core.data import Data
from coterie.core.objective import MANY, SHORT, Classification, Regression
from coterie.core.steps import head_descent
from coterie.core.task import Task

KEPT = torch.tensor([True, True, False])


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    """Return three examples of two positions over four classes. The last position of the first is padding."""
    outputs = torch.tensor(np.random.default_rng(0).normal(size=(3, 2, 4)))
    return outputs, torch.tensor([[1, -1], [3, 0], [2, 2]])


def test_the_loss_of_sequences_is_the_mean_over_all_positions_that_count():
    outputs, y = sequences()
    p = np.exp(outputs.numpy()) / np.exp(outputs.numpy()).sum(-1, keepdims=True)
    by_hand = -(np.log(p[0, 0, 1]) + np.log(p[1, 0, 3]) + np.log(p[1, 1, 0])) / 3
    assert float(Classification().mean_loss(outputs, y, KEPT)) == pytest.approx(by_hand, rel=1e-12)


def test_the_score_of_sequences_counts_positions():
    outputs = torch.zeros(3, 2, 4)
    outputs[0, 0, 1] = outputs[0, 1, 0] = outputs[1, 0, 2] = outputs[1, 1, 0] = outputs[2, :, 2] = 1.0
    _, y = sequences()
    own = torch.tensor([True, True, False, True])
    counts = Classification().scores(outputs, y, KEPT, own)
    # Without class 2, the answer at (1, 0) is the first of the equal others, which is also wrong.
    assert float(counts.pop("loss")) == pytest.approx(3 * math.log(math.e + 3) - 2)
    assert {name: int(value) for name, value in counts.items()} == {"examples": 3, "right": 2, "restricted": 2}
    outputs[1, 0, 3] = 0.5
    assert int(Classification().scores(outputs, y, KEPT, own)["restricted"]) == 3


def test_regression_is_mean_squared_error_and_r2_in_units_of_the_training_variance():
    outputs, y = torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([0.0, 4.0, 0.0])
    assert float(Regression(5.0).mean_loss(outputs, y, KEPT)) == (1 + 4) / 2
    counts = Regression(5.0).scores(outputs, y, KEPT, torch.zeros(1, dtype=torch.bool))
    assert float(counts["right"]) / int(counts["examples"]) == pytest.approx(1 - 2.5 / 5.0)
    assert counts["restricted"] == counts["right"]


@pytest.mark.parametrize("size", [4, MANY])
@pytest.mark.parametrize("num_outputs", [1, 2, 10, SHORT - 1, SHORT, 40])
def test_few_and_many_outputs_have_the_same_loss_and_gradient(num_outputs, size):
    """Whether they are transposed for speed, computed under vmap, or neither."""
    random = torch.Generator().manual_seed(num_outputs)
    outputs = 30 * torch.randn(size, num_outputs, generator=random, dtype=torch.float64)
    y = torch.randint(num_outputs, (size,), generator=random)
    chosen, kind = (y[:, None] == torch.arange(num_outputs)).double(), Classification()
    torch.testing.assert_close(kind.losses(outputs, y), outputs.logsumexp(1) - (outputs * chosen).sum(1))
    torch.testing.assert_close(vmap(kind.losses)(outputs[None], y[None])[0], kind.losses(outputs, y))
    leaf = outputs.clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(kind.losses(leaf, y).sum(), leaf)
    torch.testing.assert_close(kind.residual(outputs, chosen), by_autograd)


@pytest.mark.parametrize("kind", ["classes", "positions", "numbers"])
def test_the_slope_is_the_gradient_of_the_mean_loss(kind):
    outputs, y = sequences()
    objective = Regression() if kind == "numbers" else Classification()
    if kind == "classes":
        outputs, y = outputs[:, 0], y[:, 0]
    if kind == "numbers":
        outputs, y = outputs[:, 0, :1], torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64)
    counted = objective.counted(y, KEPT).flatten()
    slope = objective.slope(y.flatten(), counted / counted.sum(dtype=torch.float64), outputs.shape[-1])
    expected = grad(objective.mean_loss)(outputs, y, KEPT)
    torch.testing.assert_close(slope(outputs.flatten(0, -2).T).T.reshape(outputs.shape), expected)


@pytest.mark.parametrize("kind", ["positions", "numbers"])
def test_the_short_way_of_head_descent_is_gradient_descent(kind):
    torch.manual_seed(0)
    if kind == "numbers":
        net, x, y = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), torch.rand(3, 2), torch.rand(3)
        task = Task(net, "1", x, objective=Regression())
    else:
        net, x, y = (
            nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4)),
            torch.tensor([[0, 1], [2, 3], [1, 1]]),
            sequences()[1],
        )
        task = Task(net, "1", x)
    data = Data(x, y, KEPT, torch.ones(4, dtype=torch.bool), torch.tensor(0))
    features, _, _ = task.body_vjp(task.initial, x)
    head = {name: task.initial[name] for name in task.head}
    slow = dict(head)
    for _ in range(5):
        g = grad(task.head_loss)(slow, features, data)
        slow = {name: value - 0.1 * g[name] for name, value in slow.items()}
    fast = head_descent(task, head, features, data, 5, 0.1)
    for name, value in slow.items():
        torch.testing.assert_close(fast[name], value)


def test_a_federation_of_numbers_knows_its_scale_from_the_existing_clients():
    clients = {
        "a": ([[0.0], [1.0]], [1.0, 3.0], [[0.0]], [2.0]),
        "b": ([[0.0]], [5.0], [[0.0]], [2.0]),
        "new": ([[0.0]], [99.0], [[0.0]], [2.0]),
    }
    federation = Federation.from_arrays(clients, new=["new"], regression=True)
    assert federation.objective == Regression(np.var([1.0, 3.0, 5.0]))
    data = federation.data(0, "train", "local")
    assert data.y.tolist() == [1.0, 3.0]
    assert federation.num_outputs(0, "local") == federation.num_outputs(0, "global") == 1


def test_numbers_that_are_all_the_same_have_no_scale_and_get_one():
    clients = {"a": ([[0.0], [1.0]], [3.0, 3.0], [[0.0]], [2.0])}
    assert Federation.from_arrays(clients, regression=True).objective == Regression(1.0)
