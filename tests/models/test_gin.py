"""The network is FedDecay's for PubMed, equal to its definition with a dense adjacency matrix."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from coterie.core.data import Data, Graph
from coterie.core.task import Task
from coterie.errors import UserError
from coterie.models.gin import GIN

# A path 0 - 1 - 2 - 3 - 4, an edge 5 - 0, and an isolated node 6.
EDGES = torch.tensor([[0, 1, 2, 3, 5], [1, 2, 3, 4, 0]])
EDGES = torch.cat([EDGES, EDGES.flip(0)], dim=1)
NODES = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GRAPH = Graph(NODES, EDGES)


def net(num_outputs: int = 3, **options: float) -> nn.Module:
    """Return a network in evaluation mode, with BatchNorm statistics that differ from the initial ones."""
    torch.manual_seed(0)
    model = GIN(**options).build((4,), num_outputs).double().eval()  # type: ignore[arg-type]
    for part in model.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
            nn.init.normal_(part.weight)
            nn.init.normal_(part.bias)
    return model


def by_hand(model: nn.Module, x: np.ndarray, adjacency: np.ndarray, layers: int) -> np.ndarray:
    p = {name: value.detach().numpy() for name, value in model.state_dict().items()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    for layer in range(layers):
        mlp = f"layers.{layer}.nn"
        x = linear(f"{mlp}.0", x + adjacency @ x)
        norm = (x - p[f"{mlp}.1.running_mean"]) / np.sqrt(p[f"{mlp}.1.running_var"] + 1e-5)
        x = np.maximum(norm * p[f"{mlp}.1.weight"] + p[f"{mlp}.1.bias"], 0)
        x = linear("head", x) if layer == layers - 1 else np.maximum(linear(f"{mlp}.3", x), 0)
    return x


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_its_definition(layers):
    model = net(hidden=5, layers=layers)
    adjacency = np.zeros((7, 7))
    adjacency[EDGES[1], EDGES[0]] = 1
    assert (adjacency == adjacency.T).all()
    expected = by_hand(model, NODES.numpy(), adjacency, layers)
    np.testing.assert_allclose(model(GRAPH).detach().numpy(), expected, rtol=1e-10)


def test_values_go_from_the_first_end_to_the_second():
    model = net(hidden=30, layers=1)
    one_way = Graph(NODES, torch.tensor([[0], [1]]))
    expected = by_hand(model, NODES.numpy(), np.eye(7, k=-1) * (np.arange(7) == 1)[:, None], 1)
    np.testing.assert_allclose(model(one_way).detach().numpy(), expected, rtol=1e-10)
    alone = model(Graph(NODES, EDGES[:, :0]))
    assert (model(one_way) != alone).any(dim=1).tolist() == [False, True, False, False, False, False, False]


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_node_sees_as_many_edges_away_as_there_are_layers(layers):
    model = net(hidden=30, layers=layers)
    moved = NODES.clone()
    moved[4] += 1
    changed = (model(GRAPH) != model(Graph(moved, EDGES))).any(dim=1)
    assert changed.tolist() == [node in range(4 - layers, 5) for node in range(7)]


def test_a_node_alone_has_itself():
    model = net()
    torch.testing.assert_close(model(GRAPH)[6:], model(Graph(NODES[6:], EDGES[:, :0])))


def test_the_number_of_parameters():
    model = GIN().build((500,), 3)
    norm, square = 2 * 64, 64 * 64 + 64
    first, second, head = 500 * 64 + 64 + norm + square, square + norm, 64 * 3 + 3
    assert sum(p.numel() for p in model.parameters()) == first + second + head == 40_835
    assert sum(p.numel() for p in model.head.parameters()) == head


def test_dropout_is_between_layers_and_in_training_only():
    one, two, none = (net(hidden=8, **options).train() for options in ({"layers": 1}, {}, {"dropout": 0.0}))
    for model, random in ((one, False), (two, True), (none, False)):
        assert torch.equal(model(GRAPH), model(GRAPH)) != random
    assert torch.equal(two.eval()(GRAPH), two(GRAPH))
    dropped = two.train().between(torch.ones(100, 100))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert (two.between(-torch.ones(9)) == 0).all()


def cut(dtype, **options):
    model = GIN(**options)
    return Task(model.build((4,), 3).to(dtype), model.head, NODES[:1].to(dtype), is_graph=True)


def test_the_head_is_the_last_layer():
    task = cut(torch.float32, hidden=5)
    assert task.head == ("head.weight", "head.bias")
    assert len(task.body) == 6 + 4
    assert task.num_outputs == 3
    assert task.new_head(2, seed=0)["head.weight"].shape == (2, 5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_gradients_of_the_task_are_those_of_autograd(dtype, tolerance):
    task = cut(dtype, hidden=5, dropout=0.0)
    graph = Graph(NODES.to(dtype), EDGES)
    y, mask = torch.tensor([0, 1, 2, 0, 1, 2, 0]), torch.tensor([True, False, True, True, True, False, True])
    data = Data(graph, y, mask, torch.ones(3, dtype=torch.bool), torch.zeros(()))
    params = dict(task.initial)

    model = task.module(params).train()
    loss = nn.functional.cross_entropy(model(graph)[mask], y[mask])
    names, values = zip(*model.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(loss, values), strict=True))

    features, pull_back, _ = task.body_vjp(params, graph)
    head = {name: params[name] for name in task.head}
    of_head, of_features = torch.func.grad(task.head_loss, argnums=(0, 1))(head, features, data)
    found = {**of_head, **pull_back(of_features)[0]}
    assert set(found) == set(expected)
    for name, gradient in found.items():
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, expected[name], rtol=tolerance, atol=tolerance)
    assert task.loss(params, data)[0].item() == pytest.approx(loss.item(), rel=1e-5)


def test_it_is_a_function_of_its_parameters():
    model = net(hidden=5)
    moved = {name: value + 1 for name, value in model.named_parameters()}
    functional = functional_call(model, moved, (GRAPH,))
    assert not torch.allclose(functional, model(GRAPH))
    model.load_state_dict(moved, strict=False)
    torch.testing.assert_close(functional, model(GRAPH))


def test_inputs_that_are_no_graph():
    with pytest.raises(UserError, match="gin takes graphs, but these data have no edges"):
        net()(NODES)
    with pytest.raises(UserError, match="gin takes graphs"):
        Task(GIN().build((4,), 3), "head", torch.zeros(1, 4))
    with pytest.raises(UserError, match=r"one row of features each, but these inputs have shape \(28, 28\)"):
        GIN().build((28, 28), 3)
