"""`check_method`: methods that keep the contract pass, and each way to break it is noticed."""

import pytest
import torch

from coterie.core.method import Data, Method, Reply, Round, Task, Tree, settings
from coterie.core.steps import fine_tuned, sgd_reply
from coterie.errors import ClientError, DivergedError
from coterie.methods import GD, PFLEGO, Ditto, FedAvg, Scafflix
from coterie.testing import check_method


@pytest.mark.parametrize(
    ("method", "engines"),
    [
        (FedAvg(tau=2), ["loop", "vmap"]),
        (PFLEGO(tau=2), ["loop", "vmap", "fused"]),
        (Ditto(tau=2), ["loop", "vmap"]),
        (Scafflix(optimum_epochs=2), ["loop", "vmap"]),
        (GD(gamma=0.1), ["loop", "vmap"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_methods_that_keep_the_contract(method, engines):
    assert check_method(method) == engines


@settings
class Mine(Method):
    """FedAvg, which a test breaks in one way."""

    broken: str = ""

    def plan(self, rnd: Round) -> Round:
        return rnd if self.broken == "plan" else rnd.announce(steps=2)

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        reply = sgd_reply(task, shared, personal, data, rnd.steps, 0.1)
        name = next(iter(shared))
        match self.broken:
            case "in place":
                shared[name].add_(1.0)
            case "through data":
                shared[name].data.add_(1.0)
            case "extra":
                return reply._replace(tensors={**reply.tensors, "x": data.x[0]})
            case "one client" if data.x.shape[0] == 12:
                return reply._replace(tensors={**reply.tensors, "x": data.x[0]})
            case "head":
                return reply._replace(tensors={**reply.tensors, "my.head": reply.tensors["head.weight"]})
            case "labels":
                return reply._replace(numbers={**reply.numbers, "y": data.y})
            case "float":
                return reply._replace(numbers={"loss": 1.0})
            case "random":
                noise = {key: value + torch.rand(()) for key, value in reply.tensors.items()}
                return reply._replace(tensors=noise)
            case "padding":
                noise = {key: value + data.mask.shape[0] for key, value in reply.tensors.items()}
                return reply._replace(tensors=noise)
        return reply

    def adapt(self, task: Task, shared: Tree, personal: Tree, data: Data, steps: int) -> Tree:
        return fine_tuned(task, {**shared, **personal}, data, steps, 0.1)


@pytest.mark.parametrize(
    ("broken", "error", "why"),
    [
        ("in place", ClientError, r"Mine.local_update changed 'body.1.weight' of the shared model in place"),
        ("through data", ClientError, r"Mine.local_update changed 'body.1.weight' of the shared model in place"),
        ("extra", DivergedError, r"Client 'client-\d': the tensor 'x' is not part of the shared model"),
        ("head", DivergedError, r"the tensor 'my.head' is not part of the shared model"),
        ("labels", DivergedError, r"the number 'y' has shape \(\d+,\), but must be a single number"),
        ("one client", AssertionError, r"the reply of client-2 is refused: the tensor 'x' is not part of"),
        ("float", ClientError, r"client-\d.*Reply.numbers\['loss'\] must be a dense tensor with values, not float"),
        ("random", AssertionError, r"a second run with the same seed differs by"),
        ("padding", AssertionError, r"the engine vmap differs by"),
        ("plan", Exception, r"announce"),
    ],
)
def test_each_way_to_break_the_contract_is_noticed(broken, error, why):
    with pytest.raises(error, match=why):
        check_method(Mine(broken=broken))


def test_the_same_method_unbroken_passes():
    assert check_method(Mine()) == ["loop", "vmap"]
