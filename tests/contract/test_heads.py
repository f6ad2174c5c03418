"""A head is used through its own forward pass and its own gradient, whatever its class is, by every method."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

import coterie
import reference as ref
from coterie.core.heads import Heads, with_outputs
from coterie.errors import UserError
from coterie.methods import PFLEGO
from coterie.models.module import Own
from coterie.streams import torch_seeded
from engines import METHODS, Cosine, game, with_head

ALTERS = ("fedbabu", "fedcr", "fedpac", "fedsr")
"""Methods that change the weight in use, or regularize features, which differ here in their length."""
ROWS = "3.parametrizations.weight.original"


def rounds(method: str, kind: str) -> tuple[ref.Game, list[dict[str, torch.Tensor]]]:
    """Play two rounds. Returns the game, and the shared model and the personal states that they leave."""
    setup = game(method, kind)
    kept, shared = ref.store(setup), setup.method.init_shared(setup.task)
    memory = setup.method.init_memory(setup.task, shared)
    for index, cohort in enumerate(([0, 1, 2, 4], [1, 2]), 1):
        played = ref.play(setup, shared, memory, kept, cohort, ref.announced(setup, len(cohort), index))
        shared, memory = played.shared, played.memory
    return setup, [shared, *(kept[i] for i in range(5))]


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ALTERS])
def test_a_cosine_head_is_the_same_as_class_of_its_own_and_as_parametrization(method):
    """One forgets `forward` if treated as linear, the other `weight`: both must give what the formula says.

    FedBABU changes the weight in use, and FedPAC aligns features, of which only one of the two is of unit length.
    """
    _, by_class = rounds(method, "cosine")
    _, by_parametrization = rounds(method, "unit rows")
    for one, other in zip(by_class, by_parametrization, strict=True):
        assert {name.replace("3.weight", ROWS) for name in one} == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(value, other[name.replace("3.weight", ROWS)], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fedbabu"])
def test_a_frozen_head_stays_as_it_is_and_the_body_learns(method):
    setup, states = rounds(method, "frozen head")
    assert setup.task.head == ()
    with torch_seeded(0):
        given = with_head("frozen head").double()
    params = setup.method.personal_params(setup.task, states[0], states[1])
    module = setup.task.module(params)
    assert torch.equal(module[3].weight, given[3].weight)
    assert not module[3].weight.requires_grad
    assert not torch.equal(module[0].weight, given[0].weight) or method in ("fedsgd", "lg-fedavg", "local", "flix")


def used(setup: ref.Game, shared: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the weight that the head really uses."""
    module = setup.task.module(setup.method.personal_params(setup.task, shared, setup.task.personal_buffers()))
    return module[3].weight.detach()


def test_the_weight_that_a_parametrized_head_uses_is_orthogonal():
    """The head has 3 inputs and 5 outputs, so its columns are orthonormal."""
    setup = game("fedbabu", "weight norm")
    W = used(setup, setup.method.init_shared(setup.task))
    torch.testing.assert_close(W.T @ W, torch.eye(3, dtype=W.dtype))


def test_an_orthogonal_initialization_of_a_parametrized_head_is_refused():
    with pytest.raises(UserError, match=r"head_init = \"orthogonal\" .* is parametrized"):
        trained(nn.utils.parametrizations.weight_norm(nn.Linear(3, 5)), settings={"model": {"head_init": "orthogonal"}})


def test_fedbabu_adapts_a_cosine_head_by_its_own_gradient():
    setup = game("fedbabu", "cosine")
    shared = setup.method.init_shared(setup.task)
    data = setup.data(0, "train", 1)
    W = shared["3.weight"].clone().requires_grad_()
    features = normalize(setup.task.body_vjp(shared, data.x)[0], dim=-1).detach()
    velocity = torch.zeros_like(W)
    for _ in range(3):
        loss = nn.functional.cross_entropy(10 * features @ normalize(W, dim=-1).T, data.y)
        velocity = 0.9 * velocity + torch.autograd.grad(loss, W)[0]
        W = (W - 0.007 * velocity).detach().requires_grad_()
    adapted = setup.method.adapt(setup.task, shared, setup.task.personal_buffers(), data, 3)
    torch.testing.assert_close(adapted["3.weight"], W.detach(), rtol=1e-9, atol=1e-9)


def test_pflego_takes_the_gradient_of_a_cosine_head():
    """Step 3 of the algorithm on a cosine head, by hand."""
    with torch_seeded(0):
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), Cosine(3, 5))
    setup = ref.setup(PFLEGO(tau=40, beta=0.3, rho=0.0), model=Own(net=copy.deepcopy(net), head_name="2"))
    kept, shared = ref.store(setup), setup.method.init_shared(setup.task)
    x, y = (torch.from_numpy(value) for value in ref.examples(setup, 2))
    W = kept[2]["2.weight"].clone().requires_grad_()
    features = normalize(torch.tanh(net.double()[0](x)), dim=-1).detach()
    for _ in range(39):
        loss = nn.functional.cross_entropy(10 * features @ normalize(W, dim=-1).T, y)
        W = (W - 0.3 * torch.autograd.grad(loss, W)[0]).detach().requires_grad_()
    memory = setup.method.init_memory(setup.task, shared)
    ref.play(setup, shared, memory, kept, [2], ref.announced(setup, 1))
    torch.testing.assert_close(kept[2]["2.weight"], W.detach(), rtol=1e-9, atol=1e-9)


class Scaled(nn.Linear):
    """A linear layer with a temperature, whose forward needs the number of outputs."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.temperature * super().forward(x).reshape(-1, self.out_features)


class PerClass(Scaled):
    """A head with one more parameter for each output, which copies cannot size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.each = nn.Parameter(torch.ones(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.each


def small() -> coterie.Federation:
    return ref.federation((9, 6), features=4)


def trained(head: nn.Module, **options) -> coterie.Run:
    with torch_seeded(1):
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), head)
    options = {"method": "fedper", "rounds": 2, "eval_every": 1, "engine": "loop"} | options
    return coterie.train(small(), model=net, head="2", **options)


def test_a_head_of_another_width_keeps_its_class_and_its_other_parameters():
    run = trained(Scaled(3, 5))
    heads = [run.model(client)[2] for client in run.ids]
    assert [type(head) for head in heads] == [Scaled, Scaled]
    assert [(head.out_features, tuple(head.weight.shape)) for head in heads] == [(3, (3, 3)), (2, (2, 3))]
    temperatures = [head.temperature.item() for head in heads]
    assert temperatures == pytest.approx([2, 2], abs=0.5)
    assert temperatures != [2, 2], "it is trained"


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (PerClass(3, 5), "'each' has one value for each output"),
        (nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5).requires_grad_(False)), "frozen"),
        (nn.Bilinear(3, 3, 5), "does not take inputs"),
    ],
)
def test_a_head_that_cannot_be_sized_is_refused(head, why):
    with pytest.raises(UserError, match=why):
        trained(head)


def test_a_head_without_a_linear_layer_works_at_its_own_width():
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(3, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.matrix

    run = trained(Plain(), method="fedavg")
    assert run.model("client-0")[2].matrix.shape == (3, 5)
    with pytest.raises(UserError, match=r"no nn\.Linear"):
        trained(Plain())


def test_the_flag_of_a_frozen_head_survives_loading(tmp_path):
    head = nn.Linear(3, 5).requires_grad_(False)
    run = trained(copy.deepcopy(head), out=tmp_path / "run")
    with torch_seeded(1):
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), copy.deepcopy(head))
    loaded = coterie.load(tmp_path / "run", model=net)
    for model in (run.model("client-0"), loaded.model("client-0")):
        assert not model[2].weight.requires_grad
        assert torch.equal(model[2].weight, head.weight)


@pytest.mark.parametrize("head", [nn.Linear(3, 5), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))])
@pytest.mark.parametrize("init", ["default", "uniform", "orthogonal"])
def test_float64_starts_from_the_heads_of_float32(head, init):
    """So float64 is the same run with less rounding."""
    drawn = []
    for dtype in ("float32", "float64"):
        run = trained(copy.deepcopy(head), dtype=dtype, rounds=0, settings={"model": {"head_init": init}})
        drawn.append({name: value.double().numpy() for name, value in run.personal("client-1").items()})
    for name, value in drawn[0].items():
        np.testing.assert_array_equal(value, drawn[1][name], err_msg=name)


def test_fedbabu_says_when_there_is_nothing_for_it_to_train():
    for kind, why in (("logreg", "trains the body only"), ("frozen head", "frozen one")):
        with pytest.raises(UserError, match=why):
            game("fedbabu", kind)


class Tied(nn.Module):
    """A head of two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(3, 3), nn.Linear(3, 3)
        self.o.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o(torch.tanh(self.a(x)))


def test_a_head_that_cannot_follow_is_refused_with_the_reason():
    with pytest.raises(UserError, match=r"cannot be given 5 outputs: its last linear layer shares a parameter"):
        with_outputs(Tied(), 5)
    heads = Heads(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), "head", "default", torch.ones(1, 3))
    with pytest.raises(UserError, match=r"cannot be given 5 outputs: its forward pass does not follow"):
        heads.sized(5, True)
