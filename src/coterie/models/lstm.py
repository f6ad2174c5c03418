"""Shakespeare network of the Scafflix paper. Input: integer tokens, (T,). Output: the next token at each position.

Body: an embedding of width 8 and two LSTM layers of width 256. Head: one linear layer, the same at every position. With
90 tokens it has 820,522 parameters, as FedJAX's network does. Each layer has one bias. PyTorch's nn.LSTM has two, which
are only added to each other (822,570 parameters). All values of a layer are drawn from U(-1/sqrt(hidden),
1/sqrt(hidden)), as in nn.LSTM.
Deviation: FedJAX adds 1 to the forget gate and passes the output of a layer through another tanh. This is a plain LSTM.

The recurrence is written out because nn.LSTM has no batching rule for vmap. It would fall back to a slow loop with a
warning.
"""

import math

import torch
from torch import Tensor, nn

from coterie.errors import UserError
from coterie.models.model import Model
from coterie.settings import Count, settings


@settings
class LSTM(Model):
    """Next-token LSTM: embedding, LSTM layers, linear head. The defaults are the Scafflix paper's for Shakespeare."""

    embedding: Count = 8
    """Width of a token's embedding."""
    hidden: Count = 256
    """Width of each LSTM layer."""
    layers: Count = 2
    """Number of LSTM layers."""
    vocabulary: Count | None = None
    """Number of tokens. Default: the number of labels."""

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        if len(shape) != 1:
            raise UserError(f"the model lstm takes integer tokens, as (T,), but these inputs have shape {shape}")
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
    """An LSTM layer from (N, T, M) to (N, T, H) with an initial state of zeros.

    The gates are stacked as in nn.LSTM: i, f, g, o.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.input = nn.Linear(width, 4 * hidden)
        self.recurrent = nn.Linear(hidden, 4 * hidden, bias=False)
        bound = 1 / math.sqrt(hidden)
        for value in self.parameters():
            nn.init.uniform_(value, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        given = self.input(x.transpose(0, 1))  # (T, N, 4H): time first, so that each step reads contiguous memory
        h = c = x.new_zeros(len(x), self.hidden)
        states = []
        for step in given.unbind():
            i, f, g, o = torch.addmm(step, h, self.recurrent.weight.T).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, dim=1)
