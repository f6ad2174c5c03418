"""The Shakespeare network of the Scafflix paper. Input: integer tokens, (T,). Output: the next at each place.

Body: an embedding of 8, two LSTM layers of 256. Head: one linear layer, the same at every place. With 90 tokens it has
the 820,522 parameters of FedJAX's network: one bias in each layer, where PyTorch's nn.LSTM has two that are only ever
added (822,570). All values of a layer are drawn from U(-1/sqrt(hidden), 1/sqrt(hidden)), as nn.LSTM does it.
Deviation: FedJAX adds 1 to the forget gate and passes what a layer puts out through another tanh; this is a plain LSTM.

The recurrence is written out, as nn.LSTM has no batching rule for vmap and falls back to a slow loop with a warning.
"""

import math

import torch
from torch import Tensor, nn

from coterie.errors import UserError
from coterie.models.model import Model
from coterie.settings import Count, settings


@settings
class LSTM(Model):
    """Next token: an embedding, two LSTM layers, a linear head at each place; the Scafflix paper's for Shakespeare."""

    embedding: Count = 8
    """Width of a token's embedding."""
    hidden: Count = 256
    """Width of each LSTM layer."""
    layers: Count = 2
    """LSTM layers, one above the other."""
    vocabulary: Count | None = None
    """Tokens there are; as many as there are labels unless given."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        if len(shape) != 1:
            raise UserError(f"the model lstm takes integer tokens, as (T,); these inputs have the shape {shape}")
        layers: list[nn.Module] = [nn.Embedding(self.vocabulary or num_outputs, self.embedding)]
        width = self.embedding
        for _ in range(self.layers):
            layers.append(Layer(width, self.hidden))
            width = self.hidden
        net = nn.Sequential()
        net.add_module("body", nn.Sequential(*layers))
        net.add_module("head", nn.Linear(width, num_outputs))
        return net


class Layer(nn.Module):
    """(N, T, M) to (N, T, H), from a state of zeros. The gates are stacked as in nn.LSTM: i, f, g, o."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(width, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)
        bound = 1 / math.sqrt(hidden)
        for value in self.parameters():
            nn.init.uniform_(value, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        given = self.input(x.transpose(0, 1))  # (T, N, 4H): time first, so that a step reads what lies together
        h = c = x.new_zeros(len(x), self.hidden)
        states = []
        for step in given.unbind():
            i, f, g, o = torch.addmm(step, h, self.recurrent.weight.T).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, dim=1)
