"""When sites are asked, and which replies count: with a SuperLink that is played here."""

from collections import defaultdict

import httpx
import pytest

from coterie.clients import flower_asking
from coterie.clients.flower_asking import Asking
from coterie.clients.flower_link import Node
from coterie.clients.transport import Failure


class Reply:
    """A reply as `Link.replies` returns it."""

    def __init__(self, question, content=b"", error=None, after=0, lost=False):
        self.question, self.error, self.size = question, error, len(content)
        self.content, self.after, self.lost = content, after, lost

    def payload(self):
        return self.content

    @property
    def id(self):
        return f"reply to {self.question}"


class Link:
    """A SuperLink that takes messages, and gives the replies that a test puts into it."""

    def __init__(self):
        self.sent, self.answers, self.refused, self.forgotten = [], [], set(), []

    def send(self, requests, seconds, group):
        assert seconds > 0
        taken = {f"m{len(self.sent)}-{node}": node for node in requests if node not in self.refused}
        self.sent.append(dict(requests))
        return taken

    def replies(self, questions):
        found = [reply for reply in self.answers if reply.question in questions]
        self.answers = [reply for reply in self.answers if reply not in found]
        return found

    def forget(self, questions, replies):
        self.forgotten.append((sorted(questions), list(replies)))

    def fetch(self, reply, limit):
        if reply.lost:
            raise KeyError("a part")
        reply.after -= 1
        return reply.after < 0


class Clock:
    """A clock that only moves while somebody sleeps."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += max(seconds, 0.01)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(flower_asking, "time", clock)
    return clock


@pytest.fixture
def link(clock):
    return Link()


@pytest.fixture
def nodes():
    return {"north": Node(1, b"", "at 1"), "south": Node(2, b"", "at 1")}


@pytest.fixture
def asking(link, nodes):
    return Asking(link, {"north": b"n", "south": b"s"}, 60, lambda: dict(nodes), 1000)


def steps(asking, clock, seconds=2.0):
    """Step for some time, and return what came."""
    end, got = clock.now + seconds, []
    while clock.now < end and asking.waiting:
        got += asking.step()
    return got


def test_sites_are_asked_once_and_answer_in_any_order(asking, link, clock):
    steps(asking, clock)
    assert link.sent == [{1: b"n", 2: b"s"}]
    link.answers = [Reply("m0-2", b"from south")]
    assert steps(asking, clock) == [("south", b"from south")]
    link.answers = [Reply("m0-1", b"from north")]
    assert steps(asking, clock) == [("north", b"from north")]
    assert link.sent == [{1: b"n", 2: b"s"}]


def test_a_site_that_activates_its_node_is_asked_again_and_counts_once(asking, link, nodes, clock):
    steps(asking, clock)
    nodes["north"] = Node(1, b"", "at 2")
    steps(asking, clock)
    assert link.sent == [{1: b"n", 2: b"s"}, {1: b"n"}]
    link.answers = [Reply("m0-1", b"first"), Reply("m1-1", b"second")]
    assert steps(asking, clock) == [("north", b"first")]


def test_a_site_that_is_away_is_asked_when_it_comes(asking, link, nodes, clock):
    south = nodes.pop("south")
    steps(asking, clock)
    assert link.sent == [{1: b"n"}]
    assert asking.failure("north", 60) == Failure("late", "no reply within 60 s")
    assert asking.failure("south", 60) == Failure("lost", "not connected within 60 s")
    nodes["south"] = south
    steps(asking, clock)
    assert link.sent == [{1: b"n"}, {2: b"s"}]


def test_a_reply_waits_for_its_parts(asking, link, clock):
    steps(asking, clock)
    link.answers = [Reply("m0-1", b"large", after=5), Reply("m0-2", b"small")]
    assert steps(asking, clock) == [("south", b"small"), ("north", b"large")]


def test_a_reply_whose_parts_are_lost_is_asked_for_again(asking, link, clock):
    steps(asking, clock)
    link.answers = [Reply("m0-1", lost=True)]
    steps(asking, clock)
    assert link.sent == [{1: b"n", 2: b"s"}, {1: b"n"}]
    link.answers = [Reply("m1-1", b"again")]
    assert steps(asking, clock) == [("north", b"again")]


@pytest.mark.parametrize("code", [3, 4, 5])
def test_what_flower_has_lost_is_asked_again_after_a_pause(asking, link, clock, code):
    steps(asking, clock)
    sent = defaultdict(list)
    for number in range(1, 4):
        link.answers = [Reply(f"m{number - 1}-1", error=(code, "the node was away"))]
        before = clock.now
        steps(asking, clock)
        sent[number].append(clock.now - before)
        assert link.sent[number] == {1: b"n"}
    assert len(link.sent) == 4
    link.answers = [Reply("m3-1", b"at last")]
    assert steps(asking, clock) == [("north", b"at last")]


def test_an_older_question_that_is_still_open_counts(asking, link, nodes, clock):
    steps(asking, clock)
    nodes["north"] = Node(1, b"", "at 2")
    steps(asking, clock)
    link.answers = [Reply("m1-1", error=(3, "lost"))]
    steps(asking, clock)
    assert len(link.sent) == 2  # the first one may still be answered
    link.answers = [Reply("m0-1", b"first")]
    assert steps(asking, clock) == [("north", b"first")]


def test_refusals_of_couriers_are_final(asking, link, clock):
    steps(asking, clock)
    link.answers = [Reply("m0-1", error=(11, "no")), Reply("m0-2", error=(12, "huge"))]
    assert steps(asking, clock) == [("north", Failure("refused", "no")), ("south", Failure("too large", "huge"))]
    assert len(link.sent) == 1


def test_a_reply_over_the_limit_is_not_taken(asking, link, clock):
    steps(asking, clock)
    link.answers = [Reply("m0-1", bytes(1001)), Reply("m0-2", bytes(1000))]
    got = dict(steps(asking, clock))
    assert got == {"north": Failure("too large", "a reply of more than 1000 bytes"), "south": bytes(1000)}


def test_a_message_that_flower_does_not_take_is_sent_again(asking, link, clock):
    link.refused = {2}
    steps(asking, clock, seconds=0.1)
    assert link.sent == [{1: b"n", 2: b"s"}]
    link.refused = set()
    steps(asking, clock)
    assert link.sent[1:] == [{2: b"s"}]


def test_a_new_run_asks_all_that_have_not_answered(asking, link, clock):
    steps(asking, clock)
    link.answers = [Reply("m0-1", b"done")]
    steps(asking, clock)
    asking.start_over()
    steps(asking, clock)
    assert link.sent == [{1: b"n", 2: b"s"}, {2: b"s"}]


def test_replies_are_kept_while_the_superlink_is_away(asking, link, clock, monkeypatch):
    steps(asking, clock)
    link.answers = [Reply("m0-1", b"one"), Reply("m0-2", b"two")]
    fetch, failures = link.fetch, iter([True, False, True])

    def sometimes(reply, limit):
        if next(failures, False):
            raise httpx.ConnectError("away")
        return fetch(reply, limit)

    monkeypatch.setattr(link, "fetch", sometimes)
    got = []
    for _ in range(4):
        try:
            got += asking.step()
        except httpx.ConnectError:
            clock.sleep(0.2)
    assert got == [("north", b"one"), ("south", b"two")]


def test_the_pause_grows_while_nothing_happens(asking, clock):
    list(asking.step())
    pauses = []
    for _ in range(60):
        before = clock.now
        list(asking.step())
        pauses.append(clock.now - before)
    assert pauses[0] == pytest.approx(0.05)
    assert pauses[-1] == pytest.approx(0.5)
    assert pauses == sorted(pauses)


def test_the_last_pause_ends_with_the_time(link, nodes, clock):
    asking = Asking(link, {"north": b"n"}, 0.02, lambda: dict(nodes), 1000)
    list(asking.step())
    assert asking.late()
    assert clock.now == pytest.approx(1000.02)


def test_what_is_not_answered_is_deleted(asking, link, nodes, clock):
    steps(asking, clock)
    nodes["north"] = Node(1, b"", "at 2")
    steps(asking, clock)
    link.answers = [Reply("m0-2", b"south"), Reply("m1-1", b"a part", after=1000)]
    steps(asking, clock)
    later = asking.clean_up({"older": clock.now - 1, "old": clock.now + 1})
    assert link.forgotten == [(["m0-1", "old", "older"], ["reply to m1-1"])]
    assert set(later) == {"old", "m0-1"}  # sites may still reply to these
    clock.sleep(60)
    assert asking.clean_up(later) == {}
