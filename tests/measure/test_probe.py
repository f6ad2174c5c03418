"""Cost that is counted, for methods that do not declare it."""

import pytest
import torch

import reference as ref
from coterie.clients.work import Work
from coterie.core.fields import BatchSize, LocalRate, LocalSteps
from coterie.core.method import Data, Method, Prepares, Reply, Round, Task, Tree, settings
from coterie.core.steps import fine_tuned, local_sgd, sgd_reply
from coterie.core.tree import pick, under
from coterie.measure.cost import Cost, local_work
from coterie.methods import FedAvg
from engines import model, sequences


@settings
class Undeclared(Method):
    """FedAvg without its declaration of cost."""

    tau: LocalSteps = 3
    eta: LocalRate = 0.1
    batch_size: BatchSize = 0

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        return sgd_reply(task, shared, personal, data, rnd.steps, self.eta, self.batch_size)

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, self.eta, self.batch_size)


@settings
class Prepared(Undeclared, Prepares):
    """A method whose local update needs what its clients have prepared."""

    def prepare(self, task: Task, personal: Tree, data: Data) -> Tree:
        after, _ = local_sgd(task, task.initial, data, 5, self.eta)
        return {**personal, **under("start", pick(after, task.params))}

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        assert any(name.startswith(".start.") for name in personal)
        return super().local_update(task, shared, task.personal_buffers(), data, rnd)


def work(method: Method, kind: str = "mlp") -> Work:
    clients = sequences() if kind == "sequences" else ref.federation((9, 3, 12))
    return ref.setup(method, clients, model(kind)).load.work


def cost(work: Work, *sizes: int) -> Cost:
    """Return the cost of the local updates of clients with these numbers of examples."""
    rnd = work.method.plan(Round(1, 3, 24, 3, 0))
    return local_work(work.method, work.probe, [(size, work.task.num_outputs) for size in sizes], rnd)


lengths = pytest.mark.parametrize(("tau", "batch_size"), [(3, 0), (4, 2), ("2 epochs", 4)])


@lengths
@pytest.mark.parametrize("kind", ["mlp", "norm average", "norm local", "deep head", "sequences"])
def test_counted_cost_is_what_fedavg_declares(kind, tau, batch_size):
    """Batches do not divide one of the sizes, and are larger than another. BatchNorm doubles a batch of one."""
    sizes = (10, 6, 10) if kind.startswith("norm") else (9, 3, 9)
    options = {"tau": tau, "batch_size": batch_size}
    mine, theirs = work(Undeclared(**options), kind), work(FedAvg(**options), kind)
    assert mine.method.passes(9, mine.method.plan(Round(1, 3, 24, 3, 0))) is None
    counted, declared = cost(mine, *sizes), cost(theirs, *sizes)
    assert counted.flops == declared.flops > 0
    assert counted.body_forwards == declared.body_forwards > 0
    assert counted.body_backwards == declared.body_backwards > 0


@lengths
def test_no_gradient_passes_through_a_body_without_parameters(tau, batch_size):
    options = {"tau": tau, "batch_size": batch_size}
    counted, declared = (cost(work(each(**options), "logreg"), 9, 3) for each in (Undeclared, FedAvg))
    assert counted.flops == declared.flops > 0
    assert counted.body_forwards == declared.body_forwards
    assert counted.body_backwards == 0


def test_preparation_is_no_part_of_a_local_update():
    assert cost(work(Prepared()), 9, 3) == cost(work(Undeclared()), 9, 3)


def test_an_update_is_counted_once_for_each_size_and_length(monkeypatch):
    updates, original = [], Undeclared.local_update
    monkeypatch.setattr(Undeclared, "local_update", lambda *given: updates.append(1) or original(*given))
    mine = work(Undeclared(tau=2, batch_size=4))
    once = cost(mine, 9, 9)
    assert cost(mine, 9, 9) == once
    assert len(updates) == 1
    cost(mine, 3)
    mine.probe.counted(mine.method, 9, mine.task.num_outputs, Round(1, 3, 24, 3, 0).announce(steps="2 epochs"))
    assert len(updates) == 3


def test_counting_leaves_the_task_and_the_random_numbers_as_they_are():
    mine = work(Undeclared(), "norm average")
    before, state = {name: value.clone() for name, value in mine.task.initial.items()}, torch.get_rng_state()
    original = mine.task._features
    cost(mine, 9)
    assert mine.task._features == original
    assert torch.equal(torch.get_rng_state(), state)
    ref.assert_same(mine.task.initial, ref.arrays(before), 0)
