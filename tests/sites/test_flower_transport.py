"""The transport over Flower with real processes, without TLS: the same inside, and only the outer port differs."""

import io
import os
import signal
import socket
import sqlite3
import zipfile

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from coterie.clients.flower_gateway import LIMIT
from coterie.clients.flower_link import Link, Token
from coterie.clients.flower_server import FlowerTransport
from coterie.clients.flower_stub import PROJECT
from coterie.clients.flower_tell import Exit
from coterie.clients.transport import Failure
from coterie.errors import UserError
from realsites import Site, is_alive, sites, until


class Federation:
    """A server with two sites, which the tests of this file share. Each test leaves it as it was."""

    def __init__(self, folder):
        self.folder, self.told, self.roster = folder, [], {}
        self.transport = FlowerTransport(
            folder / "server", "127.0.0.1:0", None, lambda: self.roster, limit=4 << 20, told=self.told.append
        )
        self.north, self.south = self.site("north").start(), self.site("south").start()

    def site(self, name):
        site = Site(self.folder, name, self.transport.address)
        self.roster[site.public] = name
        return site

    def ask(self, *names, content=b"hello", seconds=60.0):
        return dict(self.transport.ask(dict.fromkeys(names, content), seconds))

    def child(self, name):
        (child,) = (child for child in self.transport._children._children if child.name == name)
        return child.process


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    federation = Federation(tmp_path_factory.mktemp("flower"))
    processes = [child.process.pid for child in federation.transport._children._children]
    with sites(federation.north, federation.south):
        until(lambda: federation.transport.connected() == {"north", "south"}, "both sites are connected")
        yield federation
    until(lambda: federation.transport.connected() == set(), "the sites have gone")
    federation.transport.close()
    assert not any(map(is_alive, processes))
    assert "submitted a new Flower run" in federation.told


def test_each_site_answers_its_own_request(federation):
    large = os.urandom(3 << 20)
    requests = {"north": large, "south": b""}
    assert dict(federation.transport.ask(requests, 60)) == {"north": b"north:" + large, "south": b"south:"}


def test_names_and_sizes_are_checked_before_anything_is_sent(federation):
    before = federation.north.asked()
    got = federation.ask("east", "north", content=bytes(5 << 20))
    assert {name: answer.code for name, answer in got.items()} == {"east": "unknown", "north": "too large"}
    assert federation.north.asked() == before


def test_a_reply_that_is_too_large_is_refused(federation):
    got = federation.ask("north", "south", content=bytes(4 << 20))  # with its name, the echo is longer than the limit
    assert {name: answer.code for name, answer in got.items()} == {"north": "too large", "south": "too large"}


def test_enough_sites_end_the_question(federation):
    federation.site("west")  # never comes
    got = dict(
        federation.transport.ask(
            dict.fromkeys(("north", "south", "west"), b"x"), 60, lambda answered: len(answered) == 2
        )
    )
    assert got["north"] == b"north:x"
    assert got["south"] == b"south:x"
    assert got["west"].code == "lost"


def test_a_site_that_connects_during_the_question_is_asked(federation):
    late = federation.site("late")
    with sites(late):
        answers = federation.transport.ask({"north": b"1", "late": b"2"}, 60)
        assert next(answers) == ("north", b"north:1")
        late.start()
        assert next(answers) == ("late", b"late:2")


def test_a_late_reply_does_not_reach_the_next_question(federation):
    with federation.south.taking(1.5):
        assert federation.ask("south", content=b"first", seconds=1) == {"south": Failure("late", "no reply within 1 s")}
    assert federation.ask("south", content=b"second") == {"south": b"south:second"}


def kill_while_carrying(site, asked):
    """Kill the courier of a site as soon as the site process, which was asked that often before, works."""
    until(lambda: site.asked() > asked, "the courier carries")
    site.courier.kill()
    site.courier.wait()


def test_a_killed_courier_carries_on_with_what_it_held(federation):
    site = federation.south
    told, asked = len(site.events()), site.asked()
    with site.taking(1.5):
        answers = federation.transport.ask({"north": b"1", "south": b"2"}, 60)
        assert next(answers) == ("north", b"north:1")
        kill_while_carrying(site, asked)
        assert (site.folder / "courier" / "held").exists()
        site.start_courier()
        assert next(answers) == ("south", b"south:2")
    until(lambda: not (site.folder / "courier" / "held").exists(), "it is forgotten")
    texts = [event["text"] for event in site.events()[told:] if event["event"] == "connected"]
    assert texts == ["connected again, and carrying the message that was held"]
    assert site.asked() == asked + 2  # once by each courier; the server has not asked again


def test_a_killed_courier_that_lost_its_message_is_asked_again(federation):
    site, asked = federation.south, federation.south.asked()
    with site.taking(1.5):
        answers = federation.transport.ask({"north": b"1", "south": b"2"}, 60)
        assert next(answers) == ("north", b"north:1")
        kill_while_carrying(site, asked)
        (site.folder / "courier" / "held").unlink()  # as if it had been killed before the message was on disk
        site.start_courier()
        assert next(answers) == ("south", b"south:2")


def test_a_site_process_that_restarts_does_not_lose_the_question(federation):
    site = federation.south
    with site.taking(60):
        before = site.asked()
        answers = federation.transport.ask({"north": b"1", "south": b"2"}, 60)
        assert next(answers) == ("north", b"north:1")
        until(lambda: site.asked() > before, "the site works")
        site.restart_process()
        assert next(answers) == ("south", b"south:2")


@pytest.mark.parametrize("name", ["gateway", "SuperLink"])
def test_a_killed_process_of_the_server_comes_back(federation, name):
    answers = federation.transport.ask({"north": b"1", "south": b"2"}, 60)
    killed = federation.child(name)
    os.kill(killed.pid, signal.SIGKILL)
    assert dict(answers) == {"north": b"north:1", "south": b"south:2"}
    until(lambda: federation.child(name) not in (None, killed), "it is back")
    assert federation.ask("north") == {"north": b"north:hello"}
    assert any(name in sentence and "signal 9" in sentence for sentence in federation.told)


def test_a_run_that_has_ended_is_replaced(federation):
    federation.told.clear()
    federation.transport._link.finish()
    assert federation.ask("north", "south") == {"north": b"north:hello", "south": b"south:hello"}
    assert federation.told == ["submitted a new Flower run"]


def test_a_removed_key_is_refused_for_ever(federation):
    site = federation.site("gone")
    with sites(site):
        site.start()
        until(lambda: "gone" in federation.transport.connected(), "it is connected")
        del federation.roster[site.public]
        until(lambda: "gone" not in federation.transport.connected(), "it is removed")
        assert site.exit_code() == Exit.REMOVED
        assert "no longer accepts this key" in site.events()[-1]["text"]
        federation.roster[site.public] = "gone"
        assert federation.ask("gone", seconds=0.5)["gone"].code == "lost"
        assert any("key of gone was removed earlier" in sentence for sentence in federation.told)
        del federation.roster[site.public]


def test_an_unknown_key_is_refused_on_both_sides(federation):
    stranger = Site(federation.folder, "stranger", federation.transport.address)
    with sites(stranger):
        stranger.start_courier()
        assert stranger.exit_code() == Exit.UNKNOWN
        assert stranger.events()[-1]["text"].startswith("the server does not know this key")
        until(
            lambda: any("its key is not on the list of sites" in sentence for sentence in federation.told),
            "the server tells",
        )


def test_a_second_courier_of_a_site_is_refused(federation):
    twin = Site(federation.folder, "twin", federation.transport.address)
    (twin.folder / "key").write_bytes((federation.north.folder / "key").read_bytes())
    with sites(twin):
        twin.start_courier()
        assert twin.exit_code() == Exit.UNKNOWN
    same = Site(federation.folder, "same", federation.transport.address)
    same.start_courier("--state", str(federation.north.folder / "courier"))
    with sites(same):
        assert same.exit_code() == Exit.IN_USE
    assert federation.ask("north") == {"north": b"north:hello"}


def test_a_key_cannot_act_for_another_site(federation):
    private = serialization.load_ssh_private_key((federation.south.folder / "key").read_bytes(), None)
    north = next(node.id for name, node in federation.transport._nodes().items() if name == "north")
    signer = NodeAuthHttpInterceptor(private, private.public_key())
    with FleetHttpClient.from_server_address(federation.transport.address, True, None, [signer]) as client:
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            client.PullMessages(PullMessagesRequest(node=Node(node_id=north)))
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            client.ActivateNode(ActivateNodeRequest(public_key=b"another", heartbeat_interval=15))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/fleet/register-node", 403),
        ("POST", "/v1/fleet/unregister-node", 403),
        ("POST", "/v1/fleet/get-fab", 403),
        ("POST", "/v1/control/start-run", 403),
        ("POST", "/v1/runtime/acquire-task", 403),
        ("POST", "/v1/fleet/../control/start-run", 403),
        ("POST", "/v1/fleet/%2e%2e/control/start-run", 403),
        ("GET", "/v1/fleet/pull-messages", 403),
        ("GET", "/health", 403),
        ("GET", "/docs", 403),
        ("POST", "/v1/fleet/pull-messages", 401),  # passed on, and refused without a signature
    ],
)
def test_the_gateway_passes_only_what_couriers_need(federation, method, path, status):
    host, _, port = federation.transport.address.rpartition(":")
    with socket.create_connection((host, int(port))) as raw:  # a library would tidy up the path
        headers = "Host: x\r\nContent-Type: application/protobuf\r\nContent-Length: 0\r\nConnection: close\r\n"
        raw.sendall(f"{method} {path} HTTP/1.1\r\n{headers}\r\n".encode())
        assert raw.makefile("rb").readline().split()[1] == b"%d" % status


def test_the_gateway_limits_the_size_of_a_body(federation):
    answer = httpx.post(f"http://{federation.transport.address}/v1/fleet/push-object", content=bytes(LIMIT + 1))
    assert answer.status_code == 413


def test_nothing_in_the_folder_is_open_to_others(federation):
    folder = federation.folder / "server"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("secret", "link.json", "inner.key"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600


def test_one_server_uses_a_folder(federation):
    with pytest.raises(UserError, match="another server uses"):
        FlowerTransport(federation.folder / "server", "127.0.0.1:0", None, dict)


def test_a_port_in_use_is_named(federation, tmp_path):
    with pytest.raises(UserError, match=f"cannot listen at {federation.transport.address}"):
        FlowerTransport(tmp_path, federation.transport.address, None, dict)


def test_without_tls_only_this_machine_may_connect(tmp_path):
    with pytest.raises(UserError, match="without TLS, only this machine may connect"):
        FlowerTransport(tmp_path, "0.0.0.0:0", None, dict)


def test_messages_do_not_pile_up_in_the_database(federation):
    def contents(counts):
        return [number for table, number in counts.items() if table != "object_push_sessions"]

    def count():
        database = sqlite3.connect(federation.folder / "server" / "link.db")
        tables = ("objects", "object_children", "run_objects", "message_res", "object_push_sessions")
        counts = {table: database.execute(f"select count(*) from {table}").fetchone()[0] for table in tables}
        database.close()
        return counts

    content = os.urandom(100_000)
    federation.ask("north", "south", content=content)
    with federation.south.taking(2):
        answers = federation.transport.ask(
            {"north": content, "south": content}, 60, lambda answered: len(answered) == 1
        )
        assert {name: isinstance(answer, Failure) for name, answer in answers} == {"north": False, "south": True}
        answers = federation.transport.ask({"south": content}, 60)
        assert next(answers)[0] == "south"
    asked = federation.south.asked()
    with federation.south.taking(60):
        assert federation.ask("south", content=content, seconds=1)["south"].code == "late"
        until(lambda: federation.south.asked() > asked, "the site works")
    # A late reply may still come, and is deleted with the next question.
    until(lambda: federation.ask("north") and not any(contents(count())), "nothing is left")
    assert count()["object_push_sessions"] <= 2  # Flower ends those of late replies when they expire


def test_a_run_of_somebody_else_is_refused_by_server_and_courier(federation):
    """Anyone with an account on the server's machine can submit a run at the inner port."""
    link = federation.transport._link
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("pyproject.toml", PROJECT.replace("1.0.0", "6.6.6"))
    fab = Fab(content=content.getvalue())
    foreign = link._control.StartRun(StartRunRequest(fab=fab)).run_id
    taken = link._executor.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
    assert taken.task.run_id == foreign
    theirs = Link(int(link._address.rpartition(":")[2]), federation.folder / "server" / "inner.crt", b"no secret")
    theirs.go_on(Token(foreign, taken.token))
    theirs._runtime.PullTaskInput(PullTaskInputRequest())
    asked, node = federation.north.asked(), federation.transport._nodes()["north"]
    (question,) = theirs.send({node.id: b"run this"}, 60, "")
    replies = []
    until(lambda: replies or replies.extend(theirs.replies([question])), "the courier answers")
    assert replies[0].error == (11, "this run is not one of Coterie, or of another version of it")
    assert federation.north.asked() == asked
    theirs.finish()
    theirs.close()

    second = link._control.StartRun(StartRunRequest(fab=fab)).run_id  # this one waits when our server submits its own
    link.finish()
    assert federation.ask("north") == {"north": b"north:hello"}
    statuses = {run.run_id: run.status for run in link._control.ListRuns(ListRunsRequest()).run_dict.values()}
    assert (statuses[second].status, statuses[second].sub_status) == ("finished", "failed")
    assert statuses[second].details == "not a run of Coterie"
