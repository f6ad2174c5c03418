"""The server's own work in a round is O(r · size of θ): section 3.5 of the PFLEGO paper, counted and not timed."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import reference as ref
from coterie.aggregate.mean import Mean
from coterie.core.method import Method
from coterie.methods import PFLEGO, FedAvg
from coterie.models.mlp import MLP
from coterie.server.round import _server_update


class ElementsRead(TorchDispatchMode):
    """Counts the elements that operations read, except for views."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.total += sum(each.numel() for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        return func(*args, **(kwargs or {}))


def read_by_the_server(method: Method, r: int, width: int) -> tuple[int, int]:
    """Return (elements that the server reads in a round of r clients, size of the shared model)."""
    setup = ref.setup(method, model=MLP(hidden=[width]))
    shared = method.init_shared(setup.task)
    memory, rnd = method.init_memory(setup.task, shared), ref.announced(setup, r)
    reply = {name: torch.ones(1, *value.shape, dtype=value.dtype) for name, value in shared.items()}
    with ElementsRead() as read:
        total = Mean().start()
        for _ in range(r):
            total.add(torch.ones(1, dtype=torch.float64), reply, {"loss": torch.ones(1, dtype=torch.float64)})
        _server_update(method, setup.task, shared, memory, total.result(), rnd)
    return read.total, sum(value.numel() for value in shared.values())


@pytest.mark.parametrize("method", [PFLEGO(server="sgd"), PFLEGO(), FedAvg()], ids=str)
def test_the_server_reads_each_reply_a_fixed_number_of_times(method: Method) -> None:
    """The count is a + r (b + c |θ|) + d |θ|, with small constants that do not depend on the size of the model."""
    for width in (5, 50, 500):
        counts = [read_by_the_server(method, r, width) for r in (4, 8, 12)]
        (four, size), (eight, _), (twelve, _) = counts
        assert twelve - eight == eight - four  # linear in r
        per_reply = (eight - four) / 4
        assert 2 * size <= per_reply <= 3 * size + 100  # one reply, the running sum, and their parts
        assert four - 4 * per_reply <= 20 * size + 100  # the step of the server happens once


def test_the_work_of_the_server_depends_neither_on_tau_nor_on_the_clients_that_stay_away() -> None:
    few, many = (read_by_the_server(PFLEGO(tau=tau), 4, 50) for tau in (1, 100))
    assert few == many


def test_the_bytes_that_a_round_moves_are_those_of_its_r_clients() -> None:
    """What the record of a round counts: r times the shared model down, and as much up with a few numbers."""
    setup = ref.setup(PFLEGO(tau=2), ref.federation(sizes=(5,) * 40))
    shared = setup.task.shared_body()
    size = sum(8 * value.numel() for value in shared.values())
    for r in (1, 7, 20):
        memory, rnd = setup.method.init_memory(setup.task, shared), ref.announced(setup, r, 2)
        cost = ref.play(setup, shared, memory, ref.store(setup), list(range(r)), rnd).cost
        assert cost.bytes_down == r * size
        assert cost.bytes_up == r * (size + 2 * 8)
