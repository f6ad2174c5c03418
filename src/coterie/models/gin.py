"""Graph isomorphism network: K. Xu, W. Hu, J. Leskovec, S. Jegelka, "How Powerful are Graph Neural Networks?", ICLR
2019, in the form that FedDecay uses for PubMed. Input: a `Graph`. Output: a row for each node.

A layer computes MLP(x_v + Σ x_u) for node v, with the sum over its neighbours u, and MLP = linear, batch norm, ReLU,
linear. ε is 0 and not learned. Between layers there is dropout, then ReLU. Head: the last linear layer of the last MLP,
which is followed by no sum. Body: everything else.
"""

from torch import Tensor, nn
from torch.nn import functional

from coterie.core.data import Graph
from coterie.errors import UserError
from coterie.models.model import Model
from coterie.settings import Count, Share, settings


@settings
class GIN(Model):
    """Graph isomorphism network for the nodes of a graph. FedDecay uses layers = 2 and hidden = 64 for PubMed."""

    hidden: Count = 64
    """Width of every layer of the body."""
    layers: Count = 2
    """Number of layers. It is also the number of edges over which a node receives information."""
    dropout: Share = 0.5
    """Dropout rate between layers."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        if len(shape) != 1:
            raise UserError(
                f"the model gin takes nodes with one row of features each, but these inputs have shape {shape}"
            )
        return _Net(_layers(shape[0], self.hidden, self.layers), self.dropout, nn.Linear(self.hidden, num_outputs))


class _Net(nn.Module):
    def __init__(self, layers: nn.ModuleList, dropout: float, head: nn.Linear) -> None:
        super().__init__()
        self.layers = layers
        self.between = nn.Sequential(nn.Dropout(dropout), nn.ReLU())
        self.head = head

    def forward(self, graph: Graph) -> Tensor:
        if not isinstance(graph, Graph):
            raise UserError("the model gin takes graphs, but these data have no edges; choose another (coterie models)")
        x = graph.nodes
        for place, layer in enumerate(self.layers):
            x = layer(self.between(x) if place else x, graph.edges)
        outputs: Tensor = self.head(x)
        return outputs


class _Layer(nn.Module):
    """One layer of the network.

    The first linear map is applied before the sum over neighbours. The sum then adds vectors of its output width, not
    of its input width, which can be much larger.
    """

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
