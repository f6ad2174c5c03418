"""Any `nn.Module`, with the name of the submodule that is its head."""

import copy
from dataclasses import dataclass

from torch import nn

from coterie.errors import UserError
from coterie.models.model import Model


@dataclass(frozen=True, kw_only=True)
class Own(Model):
    """The module's weights are the initial ones, pretrained or not; a head of another size is drawn anew."""

    net: nn.Module
    name: str

    @property
    def head(self) -> str:
        return self.name

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:  # noqa: ARG002
        net = copy.deepcopy(self.net)
        if not self.name:
            return net
        if self.name not in (names := [name for name, _ in net.named_modules() if name]):
            raise UserError(f"the model has no submodule {self.name!r} to be its head; it has: {', '.join(names)}")
        linear = [name for name, part in net.named_modules() if isinstance(part, nn.Linear)]
        within = [name for name in linear if name == self.name or name.startswith(f"{self.name}.")]
        if within:
            last = net.get_submodule(within[-1])
            assert isinstance(last, nn.Linear)
            if last.out_features != num_outputs:
                fresh = nn.Linear(
                    last.in_features, num_outputs, last.bias is not None, last.weight.device, last.weight.dtype
                )
                net.set_submodule(within[-1], fresh)
        return net
