"""The accounts of the long run notice what is missing (`make test-sites` does the run itself)."""

from types import SimpleNamespace

import pytest

import reference as ref
from coterie.clients.flower_asking import Asking
from coterie.clients.transport import Failure
from coterie.clients.wire import decode
from sites.direct import Direct, deployed
from sites.soak import accounts, outcome
from sites.test_equality import recipe


def test_reasons_have_a_class():
    asking = Asking(None, {"north": b""}, 1.0, dict, 1)
    assert outcome(asking.failure("north", 1.0).reason) == "lost"
    asking._asked["north"] = "at 1"
    assert outcome(asking.failure("north", 1.0).reason) == "late"
    assert outcome("it has NaN") == "refused"
    assert outcome(None) == "accepted"


@pytest.fixture
def played(tmp_path):
    """A run in which replies are lost, late and sent twice."""

    def faulty(name, request, answer):
        asked = decode(request)
        index = asked.head["round"]["index"] if asked.kind == "update" else 0
        reply = answer(request)
        if name == "client-1" and index == 2:
            return Failure("late", "no reply within 5 s")
        return answer(request) if index == 3 and name == "client-0" else reply

    transport = Direct(ref.federation((5, 3, 8)), tmp_path, faulty)
    run = deployed(recipe("pflego", clients_per_round=3), transport, quorum=0.5, attempts=1)
    made = SimpleNamespace(federation=SimpleNamespace(ids=run.ids), site=lambda name: tmp_path / name)
    return made, run.history


def test_each_request_and_each_reply_is_counted(played):
    asked, replies = accounts(*played)
    assert asked == {"accepted": 11, "late": 1}
    assert replies == {"accepted": 11, "sent again": 1, "not used": 1}


def test_a_reply_that_is_in_no_log_is_noticed(played):
    made, records = played
    records[0].digests["client-1"] = "0" * 64
    with pytest.raises(AssertionError, match="the log of client-1 lacks a reply"):
        accounts(made, records)


def test_a_request_without_an_outcome_is_noticed(played):
    made, records = played
    del records[3].digests["client-2"]
    with pytest.raises(AssertionError, match="round 4: client-2"):
        accounts(made, records)
