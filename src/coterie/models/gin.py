"""Graph isomorphism network: K. Xu, W. Hu, J. Leskovec, S. Jegelka, "How Powerful are Graph Neural Networks?", ICLR
2019, in the shape that FedDecay uses for PubMed. Input: a `Graph`; output: a row for each node.

A layer gives node v the value MLP(x_v + Σ x_u), over its neighbours u, with MLP = linear, batch norm, ReLU, linear;
ε is 0 and not learned. Dropout, then ReLU, come between layers. Body: all but the last linear of the last MLP, after
which nothing is summed. Head: that one.
"""

from torch import Tensor, nn
from torch.nn import functional

from coterie.core.data import Graph
from coterie.errors import UserError
from coterie.models.model import Model
from coterie.settings import Count, Share, settings


@settings
class GIN(Model):
    """Graph isomorphism network for the nodes of a graph: FedDecay's net for PubMed is layers = 2, hidden = 64."""

    hidden: Count = 64
    """Width of every layer of the body."""
    layers: Count = 2
    """How many edges away a node sees."""
    dropout: Share = 0.5
    """Between layers."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        if len(shape) != 1:
            raise UserError(f"the model gin takes nodes with a row of features each; these have the shape {shape}")
        return _Net(_layers(shape[0], self.hidden, self.layers), self.dropout, nn.Linear(self.hidden, num_outputs))


class _Net(nn.Module):
    def __init__(self, layers: nn.ModuleList, dropout: float, head: nn.Linear) -> None:
        super().__init__()
        self.layers, self.between, self.head = layers, nn.Sequential(nn.Dropout(dropout), nn.ReLU()), head

    def forward(self, graph: Graph) -> Tensor:
        if not isinstance(graph, Graph):
            raise UserError("the model gin takes graphs, and these data have no edges; choose another (coterie models)")
        x = graph.nodes
        for place, layer in enumerate(self.layers):
            x = layer(self.between(x) if place else x, graph.edges)
        outputs: Tensor = self.head(x)
        return outputs


class _Layer(nn.Module):
    """The first linear comes before the sum, which is then over as many values as it puts out, not as it takes."""

    def __init__(self, mlp: nn.Sequential) -> None:
        super().__init__()
        self.nn = mlp

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        first, *rest = self.nn
        assert isinstance(first, nn.Linear)
        x, (start, end) = functional.linear(x, first.weight), edges
        x = x.index_add(0, end, x.index_select(0, start)) + first.bias
        for each in rest:
            x = each(x)
        return x


def _layers(num_features: int, hidden: int, number: int) -> nn.ModuleList:
    layers = nn.ModuleList()
    for place in range(number):
        inputs = hidden if place else num_features
        mlp = [nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden)]
        layers.append(_Layer(nn.Sequential(*mlp[: 3 if place == number - 1 else 4])))
    return layers
