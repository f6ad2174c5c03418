"""Methods on an accelerator, without having one: fake tensors on a device of their own raise where devices mix.

It uses private functions of PyTorch, which are named here only.
"""

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import vmap
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import reference as ref
from coterie import registry, streams
from coterie.clients import work
from coterie.clients.announcement import Announcement, Inputs
from coterie.clients.work import Work
from coterie.core import heads
from coterie.core.data import Data
from coterie.core.method import Exchanges, Prepares, Receives
from coterie.core.objective import Classification
from coterie.core.steps import batches, dense
from coterie.core.task import Task
from coterie.core.tree import moved, pick
from coterie.errors import UserError
from coterie.methods import FedAvg
from coterie.models.module import Own
from engines import METHODS, game

_setup_privateuseone_for_python_backend("npu")  # type: ignore[no-untyped-call]
DEVICE = torch.device("npu:0")


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTensorMode]:
    """A mode in which tensors have shapes and devices, but no values."""
    for module in (batches, dense):
        monkeypatch.setattr(module, "without_padding", lambda data: not torch._C._functorch.is_batchedtensor(data.mask))
    for module in (streams, heads):
        monkeypatch.setattr(module, "torch_seeded", lambda stream: nullcontext())
    monkeypatch.setattr(FakeTensor, "new_tensor", lambda own, value: own.new_zeros(torch.as_tensor(value).shape))
    monkeypatch.setattr(FakeTensorMode, "__deepcopy__", lambda own, memo: own, raising=False)
    yield FakeTensorMode(allow_non_fake_inputs=False)
    heads.Heads.sized.cache_clear()


def there(mode: FakeTensorMode, value: Tensor) -> Tensor:
    """Return a tensor of the same shape on the device."""
    return FakeTensor(mode, value.detach().to("meta"), DEVICE)


def tree_there(mode: FakeTensorMode, tree: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: there(mode, value) for name, value in tree.items()}


def module_there(mode: FakeTensorMode, module: nn.Module) -> nn.Module:
    moved = copy.deepcopy(module)
    for part in moved.modules():
        for name, value in list(part.named_parameters(recurse=False)):
            part._parameters[name] = nn.Parameter(there(mode, value), requires_grad=value.requires_grad)
        for name, value in list(part.named_buffers(recurse=False)):
            part._buffers[name] = there(mode, value)
    return moved


def move(mode: FakeTensorMode, task: Task) -> None:
    """Move everything that a task holds to the device."""
    task.initial = tree_there(mode, task.initial)
    task._body, task._eval_body = module_there(mode, task._body), module_there(mode, task._eval_body)
    task._example, own = there(mode, task._example), task._heads
    own._features = there(mode, own._features)
    own._modes = {training: module_there(mode, part) for training, part in own._modes.items()}
    heads.Heads.sized.cache_clear()


def on_device(trees: Any) -> None:
    for tree in trees:
        assert [name for name, value in tree.items() if value.device != DEVICE] == []


def stacked(tree: Any) -> Any:
    if isinstance(tree, Data):
        return Data(*(torch.stack([value, value]) for value in tree))
    return {name: torch.stack([value, value]) for name, value in tree.items()}


def has_batches(method: str) -> bool:
    return "batch_size" in {field.name for field in fields(registry.load("method", method))}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("kind", ["mlp", "deep head"])
@pytest.mark.parametrize("method", METHODS)
def test_a_client_computes_on_its_device_alone_and_together_with_others(method, kind, mode):
    setup = game(method, kind, batch=4 if has_batches(method) else 0, dtype="float32")
    does: Work = setup.load.work
    prepared, data = ref.store(setup)[0], setup.data(0, "train", 1)
    rnd, first = ref.announced(setup, 3, 2), setup.method.init_shared(setup.task)
    move(mode, setup.task)
    shared, here = tree_there(mode, first), Data(*(there(mode, value) for value in data))
    prepared = tree_there(mode, prepared)
    with mode:
        created = moved([does.create("client-0", setup.load.num_outputs(0))], DEVICE)[0] if kind == "mlp" else prepared
        memory = does.method.init_memory(does.task, shared)
        counters = [name for name, value in memory.items() if value.ndim == 0]  # PyTorch takes them from anywhere
        memory = {name: value for name, value in memory.items() if name not in counters}
        on_device([created, does.method.init_shared(does.task), memory])
        personal = prepared if isinstance(does.method, Prepares) else created
        calls = [
            partial(work.local_update, does, rnd=rnd),
            partial(work.adapt, does, steps=2),
            lambda shared, personal, data: work.evaluate(does, shared, personal, data, data, steps=2),
        ]
        for call in calls:
            on_device(call(shared, personal, here))
            on_device(vmap(call, in_dims=(None, 0, 0))(shared, stacked(personal), stacked(here)))
        if isinstance(does.method, Receives):
            after = work.local_update(does, shared, personal, here, rnd).personal
            on_device(work.receive(does, shared, after, rnd))
        if isinstance(does.method, Exchanges):
            sent = work.local_update(does, shared, personal, here, rnd).letter
            back = pick(sent, [name for name in sent if not name.startswith(".")])
            on_device(work.read(does, {}, personal, back, rnd))


def test_unknown_tokens_are_found_before_the_model_is_on_its_device():
    """A GPU would end the process."""
    net = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 5))
    model, inputs = Own(net=net, head_name="2"), Inputs((2,), tokens=(0, 5))
    announced = Announcement(FedAvg(), model, "global", tuple("abcde"), 5, inputs, Classification(), seed=0)
    with pytest.raises(UserError, match="does not take inputs of shape 2"):
        announced.work(torch.device("meta"))


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Pretend that the machine has MPS. Returns the calls of its generator."""
    calls: list[Any] = []
    monkeypatch.setattr(streams, "_HAS_MPS", True)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: calls.append("get") or "before")
    monkeypatch.setattr(torch.mps, "manual_seed", calls.append)
    monkeypatch.setattr(torch.mps, "set_rng_state", calls.append)
    return calls


def test_the_generator_of_mps_is_seeded_and_restored(apple):
    with streams.torch_seeded(7):
        assert apple == ["get", 7]
    assert apple == ["get", 7, "before"]
