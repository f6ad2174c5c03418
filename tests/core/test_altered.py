"""Layers that were altered after they were built: they train by their own forward pass, or are refused."""

from collections import OrderedDict
from functools import partial
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

import coterie
import reference as ref
from coterie.core.chain import find_chain
from coterie.core.task import Task
from coterie.errors import UserError
from coterie.streams import torch_seeded

EXAMPLE = torch.zeros(1, 4)


class Double(nn.Linear):
    """A linear layer whose outputs are doubled."""

    def forward(self, x):
        return 2 * linear(x, self.weight, self.bias)


def doubled(self, x):
    return 2 * linear(x, self.weight, self.bias)


def net(layer: str, how: str) -> nn.Sequential:
    with torch_seeded(0):
        parts = {"body": nn.Linear(4, 3), "act": nn.Tanh(), "head": nn.Linear(3, 5)}
    old = parts[layer]
    if how == "class":
        parts[layer] = Double(old.in_features, old.out_features)
        parts[layer].load_state_dict(old.state_dict())
    elif how == "method":
        old.forward = MethodType(doubled, old)
    elif how == "partial":
        old.forward = partial(doubled, old)
    elif how == "forward hook":
        old.register_forward_hook(lambda module, given, outputs: 2 * outputs)
    return nn.Sequential(OrderedDict(parts))


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize("method", ["fedavg", "pflego"])
@pytest.mark.parametrize("layer", ["body", "head"])
@pytest.mark.parametrize("how", ["method", "partial", "forward hook"])
def test_a_forward_of_its_own_is_the_same_as_a_class(how, layer, method, engine):
    options = {"method": method, "rounds": 2, "engine": engine, "dtype": "float64", "settings": {"method": {"tau": 3}}}
    one, other = (coterie.train(ref.federation(), model=net(layer, kind), **options) for kind in (how, "class"))
    for name, value in one.shared.items():
        torch.testing.assert_close(value, other.shared[name], rtol=1e-12, atol=1e-12)
    plain = coterie.train(ref.federation(), model=net(layer, "plain"), **options)
    assert any(not torch.equal(value, plain.shared[name]) for name, value in one.shared.items())


@pytest.mark.parametrize("how", ["method", "partial", "forward hook", "class"])
def test_an_altered_layer_is_no_plain_layer(how):
    assert Task(net("head", "plain"), "head", EXAMPLE).head_is_linear
    assert not Task(net("head", how), "head", EXAMPLE).head_is_linear
    for layer in ("body", "head"):
        assert Task(net(layer, how), "head", EXAMPLE).chain is None


def test_an_altered_activation_is_no_plain_layer():
    altered = net("head", "plain")
    altered.act.forward = MethodType(lambda self, x: x, altered.act)
    assert Task(altered, "head", EXAMPLE).chain is None
    names = {name for name, _ in altered.named_parameters()}
    assert find_chain(altered, nn.Identity(), "", names, 2) is None


@pytest.mark.parametrize("layer", ["body", "head"])
@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_parameter_is_refused(register, layer):
    hooked = net(layer, "plain")
    getattr(getattr(hooked, layer).weight, register)(lambda g: g * 0)
    with pytest.raises(UserError, match=f"the parameter {layer}.weight has a hook on its gradient"):
        Task(hooked, "head", EXAMPLE)


@pytest.mark.parametrize("layer", ["body", "head"])
def test_a_forward_that_holds_on_to_the_given_parameters_is_refused(layer):
    """Its copy would compute with the parameters of the user's module, which nobody trains."""
    closed = net(layer, "plain")
    part = getattr(closed, layer)
    before = part.forward
    part.forward = lambda x: 2 * before(x)
    with pytest.raises(UserError, match=f"the forward of the module '{layer}' was replaced by a function"):
        Task(closed, "head", EXAMPLE)
