"""Your own `nn.Module`, with the name of the submodule that is its head."""

from dataclasses import KW_ONLY

from pydantic import InstanceOf
from torch import nn

from coterie.core.heads import can_resize, find_head, with_outputs
from coterie.core.suitable import copied
from coterie.errors import UserError
from coterie.models.model import Model
from coterie.settings import settings


@settings
class Own(Model):
    """Your own module. Training starts from its weights, pretrained or not.

    A head of a different size is initialized again. So is every head if the method has personal heads. A frozen head
    (requires_grad=False) keeps its weights and its number of outputs.
    """

    _: KW_ONLY
    net: InstanceOf[nn.Module]
    """The module."""
    head_name: str
    """Name of the submodule that is the head."""

    @property
    def head(self) -> str:
        return self.head_name

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:  # noqa: ARG002
        if self.init != "default":
            raise UserError(
                f'init = "{self.init}" would overwrite the weights of your own module; keep init = "default" and set '
                "the initial weights in the module itself"
            )
        if not self.head_bias:
            raise UserError(
                "head_bias = false is for models of Coterie; build your own module with a head that has none "
                "(bias=False)"
            )
        net = copied(self.net)
        head = find_head(net, self.head) if self.head else None
        if head is not None and can_resize(head):
            net.set_submodule(self.head, with_outputs(head, num_outputs, self.head))
        return net
