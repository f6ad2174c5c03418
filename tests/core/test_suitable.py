"""A module that cannot be used is refused before any work, with a message that says what to change."""

import pytest
import torch
from torch import nn

import coterie
import reference as ref
from coterie.errors import UserError


class WithoutGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.body(x)
        return self.head(features)


class Half(WithoutGradient):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)).half()


class Unused(WithoutGradient):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def net(first: nn.Module, features: int = 3) -> nn.Module:
    made = nn.Sequential()
    made.add_module("body", first)
    made.add_module("head", nn.Linear(features, 5))
    return made


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning):
        return net(nn.utils.weight_norm(nn.Linear(4, 3)))


class Words(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 3, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words(x.abs().long().clamp(max=7)).mean(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (WithoutGradient, "no gradient reaches the body"),
        (Half, r"returns torch\.float16, but losses need float32 or float64"),
        (Unused, "is not its head"),
        (lambda: net(nn.LazyLinear(3)), "lazy layers"),
        (lambda: torch.jit.script(net(nn.Linear(4, 3))), "TorchScript"),
        (old_weight_norm, r"parametrizations\.weight_norm"),
        (lambda: net(Words(sparse=True)), "sparse gradients"),
        (lambda: net(Words(max_norm=1.0)), "max_norm"),
        (lambda: net(nn.Linear(4, 3)).requires_grad_(False), "no parameters to train"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:Lazy modules")
def test_modules_that_cannot_be_trained(make, message, engine, method):
    given = make()
    with pytest.raises(UserError, match=message):
        coterie.train(ref.federation((9, 6)), model=given, method=method, rounds=1, engine=engine)
