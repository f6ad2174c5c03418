"""Faults between a server and its sites: nothing is lost, nobody is forced, and the bits stay those of a simulation."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
import reference as ref
from coterie.clients.sites import Patience
from coterie.clients.transport import Failure
from coterie.clients.wire import Message, decode, encode
from coterie.core.tree import Tree
from coterie.data.federation import Federation
from coterie.errors import StoppedError, UserError
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.server.population import Presence
from coterie.sites.sent import read as sent_by
from coterie.sites.server import Asking, gather
from coterie.training import Training
from sites.direct import Direct, deployed, ready, simulated
from sites.test_equality import assert_equal, recipe, states

Answer = Callable[[bytes], bytes]
METHODS = ("pflego", "scafflix", "fedpac", "scaffold")
"""Methods with heads, with a `receive` and an optimum, with letters, and with a control variate."""


@pytest.fixture
def federation() -> Federation:
    return ref.federation((5, 3, 8))


class Crash(BaseException):
    """The process is killed."""


def spoiled(name: str, change: Callable[[Message], bytes], index: int = 2) -> Callable[[str, bytes, Answer], bytes]:
    """Return a fault that changes the reply of a site in a round. The site believes that it was sent."""

    def fault(who: str, request: bytes, answer: Answer) -> bytes:
        reply, asked = answer(request), decode(request)
        if who == name and asked.kind == "update" and asked.head["round"]["index"] == index:
            return change(decode(reply))
        return reply

    return fault


def again(message: Message, **trees: Tree) -> bytes:
    return encode("reply", {key: message.head[key] for key in ("scores", "to")}, **{**message.trees, **trees})


def first(tree: Tree, change: Callable[[torch.Tensor], torch.Tensor]) -> Tree:
    name = sorted(tree)[0]
    return {**tree, name: change(tree[name])}


BAD = {
    "NaN": lambda m: again(m, tensors=first(m.tree("tensors"), lambda value: value * torch.nan)),
    "infinite": lambda m: again(m, tensors=first(m.tree("tensors"), lambda value: value + torch.inf)),
    "shape": lambda m: again(m, tensors=first(m.tree("tensors"), lambda value: value[:1])),
    "broadcastable": lambda m: again(m, tensors=first(m.tree("tensors"), lambda value: value.reshape(-1)[:1])),
    "type": lambda m: again(m, tensors=first(m.tree("tensors"), lambda value: value.float())),
    "missing": lambda m: again(m, tensors=dict(sorted(m.tree("tensors").items())[1:])),
    "more": lambda m: again(m, tensors={**m.tree("tensors"), "head.weight": torch.zeros(3, 4)}),
    "number": lambda m: again(m, numbers={**m.tree("numbers"), "loss": torch.zeros(2)}),
    "empty": lambda m: b"",
    "cut": lambda m: again(m)[:-5],
    "garbage": lambda m: b"\xff" * 200,
    "another kind": lambda m: encode("facts", {}),
    "failed": lambda m: encode("failed", {"why": "the disk is full"}),
    "to another request": lambda m: encode("reply", {**m.head, "to": "0" * 64}, **m.trees),
    "to nobody": lambda m: encode("reply", {"scores": None}, **m.trees),
}


class Without(Presence):
    """A simulation in which one client is absent in one round."""

    def __init__(self, number: int, client: int, index: int) -> None:
        self._number, self._client, self._index = number, client, index

    def present(self, index: int) -> np.ndarray:
        return np.arange(self._number)

    def answering(self, cohort: np.ndarray, r: float, index: int) -> tuple[np.ndarray, float]:
        return (cohort[cohort != self._client] if index == self._index else cohort), r


def without(settings: Recipe, federation: Federation, client: int, index: int):
    """Simulate the run as if a client had been absent in a round."""
    run = replace(settings.run, checkpoint_every=1)
    made = replace(settings, run=run, engine=replace(settings.engine, kind="loop"))
    prepared = prepare(made, federation)
    prepared.rounds.population = Without(len(federation.ids), client, index)
    return Training(made, prepared).play()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("method", ["pflego", "scaffold"])
def test_a_bad_reply_counts_as_if_the_site_had_been_absent(method, bad, federation, tmp_path):
    settings = recipe(method, clients_per_round=3)
    transport = Direct(federation, tmp_path, spoiled("client-1", BAD[bad]))
    found = deployed(settings, transport, quorum=0.5, attempts=1)
    expected = without(settings, federation, 1, 2)
    assert list(found.history[1].refused) == ["client-1"]
    assert found.history[1].refused["client-1"]
    assert_equal(found.shared, expected.shared, "shared")
    for i, name in enumerate(federation.ids):
        assert_equal(states(transport)[name], expected.personal(name), f"{name} ({i})")


@pytest.mark.parametrize("method", METHODS)
def test_an_old_reply_is_refused(method, federation, tmp_path):
    """The reply of an older round has the right names, shapes and values, and comes from the right site."""
    settings, replies = recipe(method, clients_per_round=3), []

    def old(name, request, answer):
        reply, asked = answer(request), decode(request)
        if name == "client-1" and asked.kind == "update":
            replies.append(reply)
            if asked.head["round"]["index"] == 3:
                return replies[0]
        return reply

    transport = Direct(federation, tmp_path, old)
    found, expected = deployed(settings, transport, quorum=Patience.quorum), without(settings, federation, 1, 3)
    assert found.history[2].refused == {
        "client-1": "it sent a reply to another request, of an older round or another run"
    }
    assert_equal(found.shared, expected.shared, "shared")
    assert_equal(states(transport)["client-1"], expected.personal("client-1"), "client-1")


def test_the_round_log_and_the_logs_of_the_sites_name_the_same_messages(federation, tmp_path):
    transport = Direct(federation, tmp_path, spoiled("client-1", BAD["NaN"]))
    run = deployed(recipe("pflego", clients_per_round=3), transport, tmp_path / "run", quorum=0.5, attempts=1)
    for record in coterie.load(tmp_path / "run").history:
        assert record.digests.keys() == set(record.cohort) - set(record.refused)
        for name, digest in record.digests.items():
            (sent,) = [each for each in sent_by(tmp_path / name) if (each.kind, each.round) == ("update", record.round)]
            assert sent.digest == digest
    assert run.history[1].refused.keys() == {"client-1"}


@pytest.mark.parametrize("method", METHODS)
def test_a_round_that_a_site_missed_is_forgotten_there(method, federation, tmp_path):
    """The site took its step, but its reply was lost for good. Its state is as if it had not taken part."""
    settings = recipe(method, clients_per_round=3)

    def lost(name, request, answer):
        answer(request)
        asked = decode(request)
        if name == "client-2" and asked.kind == "update" and asked.head["round"]["index"] == 3:
            return Failure("late", "no reply")
        return answer(request)

    transport = Direct(federation, tmp_path, lost)
    found, expected = deployed(settings, transport, quorum=0.5, attempts=1), without(settings, federation, 2, 3)
    assert_equal(found.shared, expected.shared, "shared")
    kept = states(transport)
    for name in federation.ids:
        assert_equal(kept[name], expected.personal(name), name)


@pytest.mark.parametrize("method", METHODS)
def test_a_lost_reply_is_asked_for_again_without_a_second_step(method, federation, tmp_path):
    settings, lost = recipe(method, clients_per_round=2), set()

    def once(name, request, answer):
        reply = answer(request)
        if decode(request).kind == "update" and request not in lost:
            lost.add(request)
            return Failure("late", "no reply")
        assert answer(request) == reply
        return reply

    transport = Direct(federation, tmp_path, once)
    found, expected = deployed(settings, transport), simulated(settings, federation)
    assert lost
    assert_equal(found.shared, expected.shared, "shared")
    for name in federation.ids:
        assert_equal(states(transport)[name], expected.personal(name), name)


def crashes() -> Iterator[tuple[str, str, int, bool]]:
    for method in METHODS:
        for kind, index in (("update", 1), ("update", 2), ("update", 4), ("score", 2), ("finish", 4)):
            for answered in (False, True):
                yield method, kind, index, answered


@pytest.mark.parametrize(("method", "kind", "index", "answered"), [*crashes()])
def test_a_killed_server_ends_with_the_same_bits(method, kind, index, answered, federation, tmp_path):
    """It is killed before or after a site has answered, and continues from its last checkpoint."""
    settings, killed = recipe(method, clients_per_round=2), []

    def kill(name, request, answer):
        asked = decode(request)
        here = asked.kind == kind and (kind != "update" or asked.head["round"]["index"] == index)
        if here and not killed and name == "client-2":
            killed.append(name)
            if answered:
                answer(request)
            raise Crash
        return answer(request)

    transport, out = Direct(federation, tmp_path / "sites", kill), tmp_path / "run"
    ended = 0
    for attempt in range(2):
        try:
            found = deployed(settings, transport, out, resume=attempt > 0 and (out / "recipe.toml").exists())
        except Crash:
            ended += 1
        else:
            break
    expected = simulated(settings, federation)
    assert ended == len(killed)
    assert_equal(found.shared, expected.shared, "shared")
    kept = states(transport)
    for name in federation.ids:
        assert_equal(kept[name], expected.personal(name), name)
    assert [record.train_loss for record in found.history] == [record.train_loss for record in expected.history]


def test_too_few_replies_stop_the_run_which_can_be_resumed(federation, tmp_path):
    settings, away = recipe("pflego", clients_per_round=3), [True]

    def silent(name, request, answer):
        if (
            away
            and name == "client-0"
            and decode(request).kind == "update"
            and decode(request).head["round"]["index"] == 3
        ):
            return Failure("late", "no reply within 5 s")
        return answer(request)

    transport, out = Direct(federation, tmp_path / "sites", silent), tmp_path / "run"
    with pytest.raises(StoppedError, match=r"only 2 of 3 sites .* asked 3 times; client-0: no reply within 5 s"):
        deployed(settings, transport, out)
    assert len((out / "rounds.jsonl").read_text().splitlines()) == 2
    away.clear()
    found, expected = deployed(settings, transport, out, resume=True), simulated(settings, federation)
    assert_equal(found.shared, expected.shared, "shared")


def test_a_site_leaves_and_returns(federation, tmp_path):
    """While it is not connected it is not asked, and it continues with its own state."""
    settings = recipe("ditto", rounds=6, clients_per_round=3)

    def leaving(name, request, answer):
        asked = decode(request)
        if asked.kind == "update":
            transport.away = {"client-1"} if asked.head["round"]["index"] in (2, 3) else set()
        return answer(request)

    transport = Direct(federation, tmp_path, leaving)
    found = deployed(settings, transport, quorum=0.5)
    cohorts = [record.cohort for record in found.history]
    assert cohorts[0] == cohorts[5] == federation.ids
    assert ("client-0", "client-2") in cohorts
    assert found.history[-1].eval.existing.as_is.clients == 3


def test_a_site_that_is_slow_when_the_server_returns_is_waited_for(federation, tmp_path):
    """The questions before the first round take as long as `wait` says, not only as long as a round."""
    asked = []

    class Patient(Direct):
        def ask(self, requests, seconds, enough=lambda _: False):
            asked.extend((decode(request).kind, seconds) for request in requests.values())
            return super().ask(requests, seconds, enough)

    transport = Patient(federation, tmp_path)
    made = gather(Asking(recipe("pflego"), Patience(seconds=5.0), wait=300.0), transport, list(federation.ids))
    assert set(asked) == {("hello", 300.0), ("announce", 300.0)}
    made.prepared.clients.end({}, 0)
    assert asked[-1] == ("finish", 5.0)
    transport.away = {"client-1"}
    with pytest.raises(StoppedError, match="client-1 cannot be asked: it is not connected"):
        ready(recipe("pflego"), transport, list(federation.ids))


def test_no_round_is_played_without_sites(federation, tmp_path):
    def leaving(name, request, answer):
        asked = decode(request)
        if asked.kind == "update" and asked.head["round"]["index"] == 2 and name == "client-2":
            transport.away = set(federation.ids)
        return answer(request)

    transport = Direct(federation, tmp_path / "sites", leaving)
    with pytest.raises(StoppedError, match="round 3: only 0 of 3 sites are connected, fewer than 1"):
        deployed(recipe("pflego", clients_per_round=3), transport, tmp_path / "run", seconds=0.1)
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("crash", [False, True])
def test_a_site_joins_between_rounds(crash, tmp_path):
    """It takes part from the next round on, and a server that was killed still knows it."""
    federation, killed = ref.federation((5, 3, 8, 4)), []
    settings = recipe("pflego", rounds=5, clients_per_round=None)

    def joining(name, request, answer):
        asked = decode(request)
        if asked.kind == "update" and asked.head["round"]["index"] == 2:
            transport.away = set()
        if crash and asked.kind == "update" and asked.head["round"]["index"] == 4 and not killed:
            killed.append(name)
            raise Crash
        return answer(request)

    transport, names = Direct(federation, tmp_path / "sites", joining), ["client-0", "client-1", "client-2"]
    transport.away = {"client-3"}
    for resume in range(1 + crash):
        made = ready(settings, transport, names)
        training = Training(made.asking.recipe, made.prepared, tmp_path / "run", resume=bool(resume))
        try:
            found = training.play()
        except Crash:
            continue
    cohorts = [set(record.cohort) for record in found.history]
    assert cohorts == [set(names)] * 2 + [{*names, "client-3"}] * 3
    assert found.history[-1].eval.existing.as_is.clients == 4
    states(transport)["client-3"]


def test_a_policy_refuses_and_the_others_train(federation, tmp_path):
    settings = recipe("pflego", clients_per_round=None)
    transport = Direct(federation, tmp_path)
    (tmp_path / "client-0").mkdir()
    (tmp_path / "client-0" / "policy.toml").write_text('mode = "accept-all"\nmethods = ["fedavg"]\n')
    found = deployed(settings, transport)
    assert found.ids == ("client-1", "client-2")
    assert not [kind for kind, name, *_ in transport.log if name == "client-0" and kind not in ("hello", "announce")]


def test_nobody_is_asked_for_more_than_the_policy_allows(federation, tmp_path):
    transport = Direct(federation, tmp_path)
    for name in federation.ids:
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.toml").write_text('mode = "accept-all"\nsend = ["body.*"]\n')
    with pytest.raises(UserError, match=r"no site takes part .* the tensor head\.(bias|weight) is sent"):
        ready(recipe("fedavg"), transport, list(federation.ids))


@pytest.mark.parametrize("method", METHODS)
def test_neither_personal_state_nor_data_are_sent(method, federation, tmp_path):
    """No message holds the bytes of a personal tensor or of an example, in the type of the model or of the data."""
    transport = Direct(federation, tmp_path)
    deployed(recipe(method, clients_per_round=2), transport)
    sent = [answer for *_, answer in transport.log if isinstance(answer, bytes)]
    assert len(sent) > 20
    letters = ("head.weight", "head.bias") if method == "fedpac" else ()
    for name, own in states(transport).items():
        secret = [value for key, value in own.items() if value.numel() > 2 and value.any() and key not in letters]
        x = transport.own[name].x
        secret += [*x, x.float()[0], x.double()[0]]
        for value in secret:
            assert not [message for message in sent if value.numpy().tobytes() in message], name


@pytest.mark.parametrize("when", ["new examples", "new labels"])
def test_a_site_with_other_data_does_not_continue_a_run(when, federation, tmp_path):
    """Its number of examples is what the weights of the sum were computed from."""
    settings, out = recipe("pflego", clients_per_round=3), tmp_path / "run"

    def crashing(name, request, answer):
        if decode(request).kind == "update" and decode(request).head["round"]["index"] == 3:
            raise Crash
        return answer(request)

    transport = Direct(federation, tmp_path / "sites", crashing)
    with pytest.raises(Crash):
        deployed(settings, transport, out)
    transport.fault = lambda name, request, answer: answer(request)
    other = ref.federation((5, 4, 8) if when == "new examples" else (5, 8, 3))
    transport.own["client-1"] = Direct(other, tmp_path / "other").own[
        "client-1" if when == "new examples" else "client-2"
    ]
    before = (out / "rounds.jsonl").read_bytes()
    with pytest.raises(UserError, match="data"):
        deployed(settings, transport, out, resume=True)
    assert (out / "rounds.jsonl").read_bytes() == before


def test_an_agent_survives_any_request(federation, tmp_path):
    transport = Direct(federation, tmp_path)
    deployed(recipe("pflego"), transport)
    agent, rng = transport.agent("client-0"), np.random.default_rng(0)
    requests = [request for _, name, request, _ in transport.log if name == "client-0"]
    before = states(transport)["client-0"]
    for request in requests:
        for _ in range(30):
            changed = bytearray(request)
            for place in rng.integers(0, min(len(changed), 600), 3):
                changed[place] = rng.integers(256)
            assert decode(agent.answer(bytes(changed[: rng.integers(1, len(changed) + 1)]))).kind
    assert_equal(states(transport)["client-0"], before, "client-0")
