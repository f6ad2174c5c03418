"""How a courier gets in, at a server that is played here."""

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.proto.fleet_pb2 import ActivateNodeResponse, DeactivateNodeResponse, PullMessagesResponse

from coterie.clients import flower_fleet
from coterie.clients.flower_fleet import Fleet, LostError, NotAdmittedError

REFUSED = httpx.Response(409, json={"code": 2004, "detail": "Failed to activate SuperNode."})


class Server:
    """Answers calls in turn: with a response, with a status, or by breaking the connection."""

    def __init__(self):
        self.answers, self.calls = {}, []

    def __getattr__(self, method):
        def call(request):
            self.calls.append(method)
            answers = self.answers[method]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, httpx.Response):
                raise httpx.HTTPStatusError("refused", request=httpx.Request("POST", "http://x"), response=answer)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def now(monkeypatch):
    """Let time pass only while somebody sleeps."""
    times = [0.0]

    class Clock:
        monotonic = staticmethod(lambda: times[0])
        time = staticmethod(lambda: times[0])
        sleep = staticmethod(lambda seconds: times.__setitem__(0, times[0] + seconds))

    monkeypatch.setattr(flower_fleet, "time", Clock)
    return lambda: times[0]


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def fleet(server, now):
    fleet = Fleet("127.0.0.1:1", None, ec.generate_private_key(ec.SECP384R1()), 1000)
    fleet._client.close()
    fleet._client = server
    server.answers["DeactivateNode"] = [DeactivateNodeResponse()]
    return fleet


def test_a_node_gives_back_its_lease_first(fleet, server):
    server.answers["ActivateNode"] = [ActivateNodeResponse(node_id=7)]
    assert fleet.activate(7) == 7
    assert server.calls == ["DeactivateNode", "ActivateNode"]


def test_a_heartbeat_that_comes_in_between_while_the_server_starts_does_not_shut_it_out(fleet, server, now):
    away = [httpx.Response(503)] * 10
    server.answers["DeactivateNode"] = [*away, DeactivateNodeResponse()]
    server.answers["ActivateNode"] = [httpx.ReadError("broke"), *away, REFUSED, ActivateNodeResponse(node_id=7)]
    assert fleet.activate(7) == 7
    assert now() > 20


def test_a_heartbeat_that_comes_in_between_does_not_shut_it_out(fleet, server):
    server.answers["ActivateNode"] = [REFUSED, ActivateNodeResponse(node_id=7)]
    assert fleet.activate(7) == 7
    assert server.calls == ["DeactivateNode", "ActivateNode"] * 2


def test_an_unknown_key_is_refused_at_once(fleet, server, now):
    server.answers["ActivateNode"] = [REFUSED]
    with pytest.raises(NotAdmittedError) as caught:
        fleet.activate(None)
    assert (caught.value.status, caught.value.code) == (409, 2004)
    assert server.calls == ["ActivateNode"]


def test_a_removed_key_is_refused_after_a_moment(fleet, server, now):
    server.answers["DeactivateNode"] = [httpx.Response(401)]
    server.answers["ActivateNode"] = [REFUSED]
    with pytest.raises(NotAdmittedError):
        fleet.activate(7)
    assert server.calls == ["DeactivateNode", "ActivateNode"] * 7
    assert 1 < now() < 3


def test_an_activation_whose_answer_was_lost_is_waited_for(fleet, server, now):
    lost = httpx.ReadError("the connection broke")
    server.answers["ActivateNode"] = [lost, *[REFUSED] * 80, ActivateNodeResponse(node_id=7)]
    assert fleet.activate(None) == 7
    assert 20 < now() < 32  # until its lease of 30 s has ended


def test_a_server_that_cannot_be_reached_is_waited_for(fleet, server, now):
    away = [httpx.ConnectError("no"), httpx.Response(503), httpx.ConnectTimeout("no")]
    server.answers["PullMessages"] = [*away * 20, PullMessagesResponse()]
    assert fleet.next() is None
    assert now() > 100


@pytest.mark.parametrize("broken", [httpx.ReadError("x"), httpx.Response(502), httpx.ReadTimeout("x")])
def test_a_message_that_may_be_lost_is_told(fleet, server, broken):
    server.answers["PullMessages"] = [broken]
    with pytest.raises(LostError, match="the connection broke"):
        fleet.next()


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_a_refused_call_is_told(fleet, server, status):
    server.answers["PullMessages"] = [httpx.Response(status)]
    with pytest.raises(LostError, match=f"refused PullMessages with status {status}"):
        fleet.next()
