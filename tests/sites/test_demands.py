"""A server that asks for more than it announced, or changes what was agreed to, gets nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import reference as ref
from coterie.clients.wire import Message, decode, encode
from coterie.core.tree import Tree
from coterie.sites import policy, sent
from sites.direct import Direct, deployed
from sites.test_equality import recipe

Change = Callable[[dict[str, Any], dict[str, Tree]], object]


class Honest:
    """A run of which all requests to one site are known. A dishonest server sends them again, with changes."""

    def __init__(self, folder: Path, rounds: int = 4, method: str = "pflego") -> None:
        self.transport = Direct(ref.federation((5, 3, 8)), folder)
        deployed(recipe(method, clients_per_round=3, rounds=rounds), self.transport)
        self.requests = [request for _, name, request, _ in self.transport.log if name == "client-0"]
        self.folder = folder / "client-0"

    def ask(self, kind: str, change: Change, which: int = -1) -> Message:
        """Send the last request of a kind again, changed, to a site process that has just started."""
        head, trees = [decode(request) for request in self.requests if decode(request).kind == kind][which]
        head, trees = {**head, "round": _copy(head.get("round"))}, {name: dict(tree) for name, tree in trees.items()}
        change(head, trees)
        return decode(self.transport.agent("client-0").answer(encode(kind, head, **trees)))


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    return Honest(tmp_path_factory.mktemp("honest"))


def round_of(**values: object) -> Change:
    return lambda head, _: head["round"].update(values)


def shared(change: Callable[[Tree], object]) -> Change:
    return lambda _, trees: change(trees["shared"])


DEMANDS: dict[str, tuple[Change, str]] = {
    "more rounds": (round_of(index=5), "agreed to 4 rounds"),
    "many more rounds": (round_of(index=10**9), "agreed to 4 rounds"),
    "more steps": (round_of(steps=10**9), "another number of local steps"),
    "one step": (round_of(steps=1), "another number of local steps"),
    "epochs": (
        lambda head, _: head["round"].update(steps=f"{head['round']['steps']} epochs"),
        "another number of local steps",
    ),
    "another seed": (round_of(seed=4), "another number of local steps, or another seed"),
    "one tensor more": (
        shared(lambda tree: tree.update({"head.weight": torch.zeros(3, 4, dtype=torch.float64)})),
        "another model than it announced; they differ in head.weight 3x4 float64",
    ),
    "one tensor less": (shared(lambda tree: tree.pop("body.1.bias")), "another model .* body.1.bias"),
    "another shape": (
        shared(lambda tree: tree.update({"body.1.bias": torch.zeros(7, dtype=torch.float64)})),
        "another model .* body.1.bias",
    ),
    "another type": (
        shared(lambda tree: tree.update({"body.1.bias": tree["body.1.bias"].float()})),
        "another model .* body.1.bias",
    ),
    "no model": (lambda _, trees: trees.clear(), "another model than it announced"),
    "another run": (lambda head, _: head.update(run="0" * 64), "this site has not accepted the run"),
    "a folder": (lambda head, _: head.update(run="../../client-1"), "is not the identity of a run"),
    "a state of long ago": (lambda head, _: head.update(state=1), "expects the state of this site to be that after"),
    "a state to come": (lambda head, _: head.update(state=9), "expects the state of this site to be that after"),
}


@pytest.mark.parametrize("demand", DEMANDS)
def test_the_site_refuses_and_says_why(demand, honest):
    change, why = DEMANDS[demand]
    before = {file: file.read_bytes() for file in (honest.folder / "runs").rglob("*") if file.is_file()}
    answer = honest.ask("update", change)
    assert answer.kind == "failed"
    assert not answer.trees
    assert re.search(why, answer.head["why"]), answer.head["why"]
    assert {file: file.read_bytes() for file in (honest.folder / "runs").rglob("*") if file.is_file()} == before


def test_the_same_requests_without_a_change_are_answered(honest):
    """The negative control of the test above: what is refused there is the change."""
    assert honest.ask("update", lambda head, _: head).kind == "failed"  # the run has ended, its last round counts
    assert honest.ask("finish", lambda head, _: head).kind == "finished"


@pytest.mark.parametrize("demand", ["more steps", "one step", "one tensor more", "another type", "another seed"])
def test_a_round_that_is_due_is_refused_if_it_was_changed(demand, tmp_path):
    """The request of the last round is intercepted, so that it is still due."""
    change, why = DEMANDS[demand]
    answers = []

    def intercept(name, request, answer):
        asked = decode(request)
        if name == "client-1" and asked.kind == "update" and asked.head["round"]["index"] == 4:
            head, trees = (
                {**asked.head, "round": dict(asked.head["round"])},
                {k: dict(v) for k, v in asked.trees.items()},
            )
            change(head, trees)
            answers.append(decode(answer(encode("update", head, **trees))))
        return answer(request)

    transport = Direct(ref.federation((5, 3, 8)), tmp_path, intercept)
    deployed(recipe("pflego", clients_per_round=3), transport)
    (answer,) = answers
    assert answer.kind == "failed"
    assert re.search(why, answer.head["why"])


def test_the_number_of_replies_is_limited(tmp_path):
    """A server may ask for a round again with another model, because it was killed, but not for ever."""
    honest = Honest(tmp_path, rounds=2)
    kinds = []
    for number in range(12):
        request = next(request for request in honest.requests if decode(request).kind == "update")
        head, trees = decode(request)
        trees = {name: {key: value + number for key, value in tree.items()} for name, tree in trees.items()}
        transport = Direct(ref.federation((5, 3, 8)), tmp_path / "fresh")
        if not number:
            for early in honest.requests[:2]:
                transport.agent("client-0").answer(early)
        kinds.append(decode(transport.agent("client-0").answer(encode("update", head, **trees))))
    assert [answer.kind for answer in kinds] == ["reply"] * 6 + ["failed"] * 6
    assert "the site agreed to 2 rounds. It has sent 6 replies" in kinds[-1].head["why"]


def test_scores_are_not_sent_unless_they_were_announced(tmp_path):
    honest = Honest(tmp_path)
    transport = Direct(ref.federation((5, 3, 8)), tmp_path / "fresh")
    agent = transport.agent("client-0")
    announced = next(request for request in honest.requests if decode(request).kind == "announce")
    head, _ = decode(announced)
    assert decode(agent.answer(encode("announce", {**head, "scores": False}))).kind == "accepted"
    scores = next(request for request in honest.requests if decode(request).kind == "score")
    answer = decode(agent.answer(scores))
    assert (answer.kind, answer.head["why"]) == ("failed", "the run did not announce that it asks for scores")
    update = next(request for request in honest.requests if decode(request).kind == "update")
    asked, trees = decode(update)
    reply = decode(agent.answer(encode("update", {**asked, "scored": True}, **trees)))
    assert (reply.kind, reply.head["scores"]) == ("reply", None)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("rounds", lambda head: head.update(rounds=400)),
        ("scores", lambda head: head.update(scores=not head["scores"])),
        ("version", lambda head: head.update(coterie="99.0")),
        ("seed", lambda head: head["announcement"].update(seed=77)),
        ("a setting of the method", lambda head: head["announcement"]["method"].update(beta=0.5)),
        ("the method", lambda head: head["announcement"].update(method={"name": "fedavg"})),
        ("the model", lambda head: head["announcement"]["model"].update(hidden=[5])),
    ],
)
def test_a_run_that_was_accepted_is_another_one_after_a_change(what, change, tmp_path):
    honest = Honest(tmp_path)
    transport = Direct(ref.federation((5, 3, 8)), tmp_path / "fresh")
    (tmp_path / "fresh" / "client-0").mkdir(parents=True)
    (tmp_path / "fresh" / "client-0" / "policy.toml").write_text('mode = "ask"\n')
    announced = next(request for request in honest.requests if decode(request).kind == "announce")
    agent, state = transport.agent("client-0"), tmp_path / "fresh" / "client-0"
    assert decode(agent.answer(announced)).kind == "waiting"
    (waiting,) = policy.pending(state)
    policy.decide(state, waiting.digest, True)
    assert decode(agent.answer(announced)).kind == "accepted"
    head, _ = decode(announced)
    change(head)
    answer = decode(agent.answer(encode("announce", head)))
    assert answer.kind in ("waiting", "failed"), what
    assert {each.kind for each in sent.read(state)} <= {"accepted", "waiting", "failed"}


def test_consent_that_is_taken_back_ends_the_run_at_this_site(honest):
    """The policy is read again for each message."""
    file = honest.folder / policy.FILE
    before = file.read_text()
    try:
        file.write_text('mode = "accept-listed"\n')
        for kind in ("update", "score", "keep", "finish"):
            if any(decode(request).kind == kind for request in honest.requests):
                answer = honest.ask(kind, lambda head, _: head)
                assert (answer.kind, answer.trees) == ("refused", {}), kind
    finally:
        file.write_text(before)
