"""The loop engine on several threads: the same bits, errors that name the client, and a bounded number of results."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import coterie
import reference as ref
from coterie.clients import loop
from coterie.clients.engine import Call, Group
from coterie.clients.loop import Loop
from coterie.clients.workload import Workload
from coterie.core.method import Reply, settings
from coterie.errors import ClientError
from coterie.methods import FedAvg
from coterie.run import Run
from engines import METHODS, assert_same_rounds, game

THREADS = 3


@pytest.fixture
def threads(monkeypatch) -> Iterator[set[int]]:
    """Use several threads. Yields the threads in which clients were computed."""
    seen: set[int] = set()
    original = loop._one

    def watched(load: Workload, work: object, call: Call, place: int) -> Group:
        seen.add(threading.get_ident())
        assert torch.get_num_threads() == 1 or threading.current_thread() is threading.main_thread()
        return original(load, work, call, place)

    monkeypatch.setattr(loop, "_one", watched)
    torch.set_num_threads(THREADS)
    yield seen
    torch.set_num_threads(1)


class Threaded(Loop):
    """The loop engine on several threads, whatever the usual number is."""

    def each_client(self, load: Workload, call: Call) -> Iterator[Group]:
        torch.set_num_threads(THREADS)
        groups = super().each_client(load, call)
        try:
            for group in groups:
                torch.set_num_threads(1)
                yield group
                torch.set_num_threads(THREADS)
        finally:
            groups.close()
            torch.set_num_threads(1)


@pytest.mark.parametrize("model", ["mlp", "norm average", "deep head"])
@pytest.mark.parametrize("method", METHODS)
def test_the_bits_do_not_depend_on_the_number_of_threads(method, model):
    setup = game(method, model, batch=4 if method == "fedavg" else 0)
    assert_same_rounds(setup, Threaded(), [[0, 1, 2, 3, 4], [5, 2, 0]], tolerance=0)


def trained(**keys: object) -> Run:
    keys = {"model": "mlp", "method": FedAvg(tau=2), "rounds": 2, **keys}
    return coterie.train(ref.federation((5, 3, 8, 1, 6, 4)), engine="loop", **keys)


def test_clients_are_computed_on_several_threads(threads):
    trained()
    assert len(threads) >= 2
    assert threading.get_ident() not in threads
    assert torch.get_num_threads() == THREADS


def test_random_models_and_single_clients_use_the_threads_within_operations(threads):
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 5))
    trained(model=net, head="2")
    coterie.train(ref.federation((9,)), method=FedAvg(tau=2), engine="loop", rounds=1)
    assert threads == {threading.get_ident()}


@settings
class Fails(FedAvg):
    """A method that fails for the client with three examples."""

    def local_update(self, task, shared, personal, data, rnd) -> Reply:
        if len(data.y) == 3:
            raise KeyError("no such thing")
        return super().local_update(task, shared, personal, data, rnd)


def test_an_error_names_the_client_and_ends_all_threads(threads):
    before = threading.active_count()
    with pytest.raises(ClientError, match=r"Fails\.local_update failed for client 'client-1' in round 1: KeyError"):
        trained(method=Fails(tau=2))
    assert threading.active_count() == before


def test_no_more_clients_are_computed_than_are_asked_for(threads, monkeypatch):
    started: list[int] = []
    original = loop._one
    monkeypatch.setattr(loop, "_one", lambda *args: started.append(args[-1]) or original(*args))
    setup = game("fedavg")
    clients = [0, 1, 2, 3, 4, 5] * 10
    shared = setup.method.init_shared(setup.task)
    call = Call(lambda work, shared: (shared,), shared, clients, ())
    groups = Loop().each_client(setup.load, call)
    assert next(groups).places == [0]
    assert len(started) <= loop.AHEAD * THREADS + 1
    assert [group.places for group in groups] == [[place] for place in range(1, 60)]
