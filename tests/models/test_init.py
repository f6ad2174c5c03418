"""Initial values have the requested distribution and depend on the seed of the run."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import reference as ref
from coterie import registry
from coterie.errors import UserError
from coterie.methods import PFLEGO
from coterie.models.conv4 import Conv4
from coterie.models.init import draw
from coterie.models.mlp import MLP
from coterie.models.model import Model
from coterie.models.module import Own
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.settings import settings
from coterie.streams import torch_seeded


@settings
class Layers(Model):
    """A network with one layer of each kind."""

    def build(self, shape, num_outputs):
        return nn.ModuleDict(
            {
                "dense": nn.Linear(30, 20_000),
                "convolution": nn.Conv2d(7, 20_000, (3, 2)),
                "line": nn.Conv1d(40, 50, 9, bias=False),
                "norm": nn.BatchNorm2d(5),
                "embedding": nn.Embedding(6, 5),
                "recurrent": nn.LSTM(4, 5),
            }
        )


def drawn(model, seed=0, shape=(28, 28), outputs=5):
    with torch_seeded(seed):
        return draw(model, shape, outputs)


@pytest.mark.parametrize(("layer", "fans"), [("dense", 30 + 20_000), ("convolution", 20_007 * 6), ("line", 90 * 9)])
def test_weights_are_truncated_normal_with_glorots_variance(layer, fans):
    scaled = drawn(Layers(init="glorot-normal"))[layer].weight.double().flatten() * math.sqrt(fans / 2)
    tolerance = 4 / math.sqrt(len(scaled))
    assert scaled.mean().item() == pytest.approx(0, abs=tolerance)
    assert scaled.std().item() == pytest.approx(1, abs=tolerance)
    unit = 1 / math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
    assert 1.98 * unit < scaled.abs().max() < 2.0001 * unit
    within = math.erf(math.sqrt(0.5)) / math.erf(math.sqrt(2))
    assert (scaled.abs() < unit).double().mean().item() == pytest.approx(within, abs=tolerance)


@pytest.mark.parametrize(("layer", "std"), [("dense", 0.01), ("convolution", 1e-6)])
def test_biases_are_normal(layer, std):
    scaled = drawn(Layers(init="glorot-normal"))[layer].bias.double() / std
    assert scaled.mean().item() == pytest.approx(0, abs=0.03)
    assert scaled.std().item() == pytest.approx(1, abs=0.02)
    assert (scaled.abs() > 2).double().mean().item() == pytest.approx(1 - math.erf(math.sqrt(2)), abs=0.01)


def test_other_layers_are_left_as_pytorch_draws_them():
    net, usual = drawn(Layers(init="glorot-normal")), drawn(Layers())
    for layer in ("norm", "embedding", "recurrent"):
        for ours, theirs in zip(net[layer].parameters(), usual[layer].parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_by_default_every_layer_is_as_pytorch_draws_it():
    with torch_seeded(4):
        built = Conv4().build((28, 28), 5)
    for ours, theirs in zip(drawn(Conv4(), 4).parameters(), built.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def initial(seed, **options):
    recipe = Recipe.parse({"run": {"seed": seed}, "model": {"name": "mlp", "hidden": [40], **options}})
    return prepare(recipe, ref.federation()).rounds.task.initial


def test_a_run_starts_from_it_in_body_and_head():
    ours, again, other, usual = (
        initial(seed, init=init)
        for seed, init in ((1, "glorot-normal"), (1, "glorot-normal"), (2, "glorot-normal"), (1, "default"))
    )
    for name, value in ours.items():
        assert torch.equal(value, again[name])
        assert not torch.equal(value, other[name])
        assert not torch.equal(value, usual[name])
    bound = 1 / math.sqrt(40)  # PyTorch's weights and biases in the head
    assert usual["head.bias"].abs().max() > 0.05 * bound
    assert ours["head.bias"].abs().max() < 0.05
    assert ours["head.weight"].abs().max() > bound


def test_an_unknown_name_is_refused():
    with pytest.raises(UserError, match=r"model\.init = 'glorot'"):
        Recipe.parse({"model": {"name": "mlp", "init": "glorot"}})


def test_a_module_of_ones_own_is_not_drawn_over():
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    own = Own(net=net, head_name="1")
    for ours, theirs in zip(drawn(own, shape=(4,)).parameters(), net.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(UserError, match=r'init = "glorot-normal" would overwrite .* your own module'):
        drawn(replace(own, init="glorot-normal"), shape=(4,))


@pytest.mark.parametrize("name", ["mlp", "logreg", "conv4", "cnn-cifar", "cnn-dropout", "cnn-femnist"])
def test_a_head_without_bias_leaves_the_rest_as_it_is(name):
    kind = registry.load("model", name)
    with_bias, without = (drawn(kind(head_bias=bias), shape=(28, 28)) for bias in (True, False))
    left = set(dict(with_bias.named_parameters())) - set(dict(without.named_parameters()))
    assert left == {"head.bias"}
    for key, value in without.named_parameters():
        assert torch.equal(value, with_bias.get_parameter(key))


def test_outputs_without_bias_are_the_head_times_the_features():
    """Section 3.1 of the PFLEGO paper: z = W_i φ. Personal heads have no bias either."""
    setup = ref.setup(PFLEGO(tau=3), model=MLP(hidden=[3], head_bias=False))
    personal, shared = ref.store(setup)[0], setup.task.shared_body()
    assert list(personal) == ["head.weight"]
    data = setup.data(0, "train", 0)
    params = {**shared, **personal}
    features = setup.task.features(params, data.x)
    torch.testing.assert_close(setup.task.outputs(params, data.x), features @ personal["head.weight"].T)
    played = ref.play(setup, shared, {}, store := ref.store(setup), [0, 1], ref.announced(setup, 2))
    assert played.loss > 0
    assert list(store[0]) == ["head.weight"]
    assert not torch.equal(store[0]["head.weight"], personal["head.weight"])


def test_the_head_of_your_own_module_keeps_its_bias():
    with pytest.raises(UserError, match=r"head_bias = false is for models of Coterie; .*bias=False"):
        draw(Own(net=nn.Sequential(nn.Linear(4, 3)), head_name="0", head_bias=False), (4,), 3)
