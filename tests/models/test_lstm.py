"""The network has the size of FedJAX's and the values of PyTorch's nn.LSTM, and can be mapped over clients."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from coterie.core.data import Data
from coterie.core.task import Task
from coterie.errors import UserError
from coterie.models.lstm import LSTM
from coterie.streams import torch_seeded


def drawn(model=None, shape=(7,), num_outputs=11):
    with torch_seeded(5):
        return (model or LSTM(embedding=3, hidden=6)).build(shape, num_outputs).double()


def tokens(*shape, most=11):
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(1))


def test_the_number_of_parameters():
    net = LSTM().build((80,), 90)
    layers = [4 * 256 * (width + 256) + 4 * 256 for width in (8, 256)]
    assert sum(p.numel() for p in net.body.parameters()) == 90 * 8 + sum(layers)
    assert sum(p.numel() for p in net.parameters()) == 820_522
    theirs = [nn.Embedding(90, 8), nn.LSTM(8, 256, 2), nn.Linear(256, 90)]
    assert sum(p.numel() for part in theirs for p in part.parameters()) == 822_570 == 820_522 + 2 * 4 * 256


def test_settings_and_vocabulary():
    net = LSTM(embedding=3, hidden=5, layers=3, vocabulary=20).build((7,), 4)
    assert net.body[0].weight.shape == (20, 3)
    assert [layer.input.in_features for layer in net.body[1:]] == [3, 5, 5]
    assert net.body(tokens(2, 7, most=20)).shape == (2, 7, 5)
    assert net(tokens(2, 7, most=20)).shape == (2, 7, 4)


def test_it_computes_what_pytorch_computes():
    net = drawn()
    theirs = nn.LSTM(3, 6, 2, batch_first=True).double()
    for n, layer in enumerate(net.body[1:]):
        state = {
            f"weight_ih_l{n}": layer.input.weight,
            f"weight_hh_l{n}": layer.recurrent.weight,
            f"bias_ih_l{n}": layer.input.bias,
            f"bias_hh_l{n}": torch.zeros(24),
        }
        theirs.load_state_dict({**theirs.state_dict(), **state})
    x = tokens(4, 7)
    expected, _ = theirs(net.body[0](x))
    torch.testing.assert_close(net.body(x), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(net(x), net.head(expected), rtol=1e-12, atol=1e-12)


def test_layers_are_drawn_as_pytorch_draws_them():
    for layer in LSTM().build((80,), 90).body[1:]:
        for value in layer.parameters():
            assert 0.99 / 16 < value.abs().max() <= 1 / 16
            assert value.std().item() == pytest.approx(1 / 16 / 3**0.5, rel=0.05)


def test_what_comes_later_changes_nothing_before():
    net, x = drawn(), tokens(2, 7)
    changed = x.clone()
    changed[0, 4] = (x[0, 4] + 1) % 11
    same = (net(x) == net(changed)).all(-1)
    assert same.tolist() == [[True] * 4 + [False] * 3, [True] * 7]


def test_mapped_over_clients_it_is_the_loop():
    net, x, y = drawn(), tokens(3, 2, 7), tokens(3, 2, 7)

    def loss(params, x, y):
        return nn.functional.cross_entropy(functional_call(net, params, (x,)).flatten(0, 1), y.flatten())

    params = {name: torch.stack([value.detach() * f for f in (1, 0.5, 2)]) for name, value in net.named_parameters()}
    mapped = vmap(grad(loss))(params, x, y)
    for client in range(3):
        single = grad(loss)({name: value[client] for name, value in params.items()}, x[client], y[client])
        for name, value in single.items():
            assert value.abs().sum() > 0
            torch.testing.assert_close(mapped[name][client], value, rtol=1e-10, atol=1e-12)


def test_as_a_task():
    model = LSTM(embedding=3, hidden=6)
    x = tokens(4, 7)
    task = Task(drawn(model), model.head, x)
    assert task.head == ("head.weight", "head.bias")
    assert (task.num_outputs, task.buffers, task.is_random, task.mixes_examples) == (11, (), False, False)
    y = torch.where(torch.arange(7) < 5, x.roll(-1, 1), -1)
    data = Data(x, y, torch.tensor([True, True, True, False]), torch.ones(11, dtype=torch.bool), torch.tensor(0))
    loss, _ = task.loss(task.initial, data)
    expected = nn.functional.cross_entropy(task.outputs(task.initial, x[:3, :5]).flatten(0, 1), y[:3, :5].flatten())
    torch.testing.assert_close(loss, expected)


def test_inputs_it_cannot_take():
    with pytest.raises(
        UserError, match=r"lstm takes integer tokens, as \(T,\), but these inputs have shape \(28, 28\)"
    ):
        LSTM().build((28, 28), 10)
    with pytest.raises(UserError, match=r"does not take inputs of shape 7 and type torch\.float32"):
        Task(LSTM().build((7,), 10), "head", torch.rand(1, 7))
    with pytest.raises(UserError, match=r"does not take inputs of shape 7 and type torch\.int64"):
        Task(LSTM().build((7,), 10), "head", torch.full((1, 7), 10))
