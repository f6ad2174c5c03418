"""A cohort over the workers of a small local cluster, which all tests of this file share."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reference as ref
from coterie import cli
from coterie.clients.engine import Cohort
from coterie.core.tree import num_bytes
from coterie.errors import ClientError, DivergedError, UserError
from coterie.methods import FedAvg
from coterie.models.module import Own
from engines import METHODS, assert_equal, assert_same_rounds, game, slow_unless

ray = pytest.importorskip("ray", reason="pip install 'coterie[ray]'")
from coterie.clients import ray_crew  # noqa: E402
from coterie.clients.ray import Ray, shards  # noqa: E402
from coterie.clients.ray_crew import dumps, loads  # noqa: E402

SECONDS = 60


@pytest.fixture(scope="module")
def cluster():
    """A cluster with room for an engine of two workers and for a run of one."""
    engine = Ray(workers=3)
    engine._crew  # noqa: B018 - starts the cluster
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def engine(cluster):
    engine = Ray(workers=2)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def setup():
    return game("fedavg")


@pytest.fixture(scope="module")
def load(setup):
    return setup.load


def do(engine, load, *jobs):
    return engine._crew.do(load, {}, jobs)


def process(engine, load, shared):
    return os.getpid()


def die(engine, load, shared):
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(mark, engine, load, shared):
    if not mark.exists():
        mark.touch()
        die(engine, load, shared)
    return "done"


def fail(mark, error, engine, load, shared):
    with mark.open("a") as file:
        file.write("tried\n")
    raise error


# -- the same as the loop


@pytest.mark.parametrize(
    ("method", "dtype", "tolerance"),
    [
        slow_unless(
            dtype == "float64" and method in ("fedavg", "fedem", "pflego", "scafflix"), method, dtype, tolerance
        )
        for method in METHODS
        for dtype, tolerance in (("float64", 1e-9), ("float32", 1e-5))
    ],
)
def test_unequal_clients_of_different_heads(engine, method, dtype, tolerance):
    """Clients have 1 to 30 examples and heads of 1 to 3 outputs; some cohorts have fewer clients than workers."""
    assert_same_rounds(game(method, dtype=dtype), engine, [[0, 1, 2, 3, 4, 5], [4, 1], [2], [3]], tolerance)


@pytest.mark.parametrize("kind", ["norm average", "norm local"])
def test_buffers(engine, kind):
    assert_same_rounds(game("pflego", kind), engine, [[0, 1, 2, 3, 4], [1, 3]], 1e-9)


def test_dropout_is_drawn_from_the_clients_own_streams(engine):
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 5))
    assert_same_rounds(ref.setup(FedAvg(tau=3), model=Own(net=net, head_name="2")), engine, [[0, 1, 2, 3]], 1e-9)


class Mutating(FedAvg):
    """FedAvg that changes the shared model in place."""

    def local_update(self, task, shared, *more):
        reply = super().local_update(task, shared, *more)
        next(iter(shared.values())).add_(1.0)
        return reply


def test_a_worker_notices_a_change_of_the_shared_model_in_place(engine):
    """The driver cannot: what changes is a copy. (Dropout makes workers compute one client after another.)"""
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 5))
    setup = ref.setup(Mutating(tau=1), model=Own(net=net, head_name="2"))
    shared = setup.method.init_shared(setup.task)
    with pytest.raises(ClientError, match=r"Mutating.local_update changed '0.weight' of the shared model in place"):
        ref.play(setup, shared, {}, ref.store(setup, engine), [0, 1, 2], ref.announced(setup, 3))


def test_a_client_that_sends_nonsense_is_refused(engine):
    setup = game("pflego")
    x = setup.federation.x.clone()
    x[setup.federation.splits["train"].row(1)] = 1e308
    setup = setup.having(federation=replace(setup.federation, x=x))
    shared = setup.method.init_shared(setup.task)
    memory = setup.method.init_memory(setup.task, shared)
    played = ref.play(setup, shared, memory, ref.store(setup, engine), [0, 1, 4], ref.announced(setup, 3))
    assert list(played.refused) == [1]
    alone = ref.play(setup, shared, memory, ref.store(setup), [0, 1, 4], ref.announced(setup, 3))
    assert_equal(played.shared, alone.shared, 1e-9)


def test_a_run_by_the_command(cluster, tmp_path, monkeypatch, capsys):
    summaries = []
    for kind in ("ray", "fused"):
        changes = ["run.rounds=3", "run.clients_per_round=5", "partition.clients=10", f"engine.kind={kind}"]
        arguments = [part for change in [*changes, "engine.workers=1"] for part in ("--set", change)]
        monkeypatch.setattr(sys, "argv", ["coterie", "run", "--json", "--out", str(tmp_path / kind), *arguments])
        handler = signal.getsignal(signal.SIGINT)
        with pytest.raises(SystemExit) as stop:
            cli.main()
        signal.signal(signal.SIGINT, handler)
        assert stop.value.code == 0
        summaries.append(json.loads(capsys.readouterr().out))
    ours, fused = summaries
    assert ours["engine"] == "ray"
    assert ours["train_loss"] == pytest.approx(fused["train_loss"], rel=1e-5)
    assert ours["existing"] == fused["existing"]
    assert ours["new"] == fused["new"]
    assert ours["cost"]["seconds"] > 0


# -- workers that die, and work that fails


def test_a_killed_worker_makes_no_difference(engine, monkeypatch):
    """A worker dies at the beginning of the second of three rounds."""
    updates = Ray.local_updates

    def with_a_death(self, load, cohort):
        if cohort.rnd.index == 2:
            os.kill(do(self, load, process)[0], signal.SIGKILL)
        return updates(self, load, cohort)

    monkeypatch.setattr(Ray, "local_updates", with_a_death)
    assert_same_rounds(game("pflego"), engine, [[0, 1, 2, 3, 4, 5], [4, 1, 3], [2, 5]], 1e-9)


def test_what_a_worker_did_not_finish_is_done_again(engine, load, tmp_path, caplog):
    assert do(engine, load, partial(die_once, tmp_path / "mark"), process)[0] == "done"
    assert "a worker was lost" in caplog.text
    first, second = do(engine, load, process, process)
    assert first != os.getpid() != second


@pytest.mark.parametrize(
    "error", [UserError("mend it"), DivergedError("too far"), ClientError("for him"), ZeroDivisionError("oh")]
)
def test_an_error_in_a_worker_is_raised_here_and_not_tried_again(engine, load, tmp_path, error):
    with pytest.raises(type(error)) as caught:
        do(engine, load, process, partial(fail, tmp_path / "tries", error))
    assert type(caught.value) is type(error)
    assert str(caught.value) == str(error)
    assert (tmp_path / "tries").read_text() == "tried\n"


# -- what travels


def test_a_row_of_a_stack_travels_alone_and_keeps_its_layout():
    stack = torch.randn(1000, 4, 3, 5, 5).to(torch.float64)
    row = stack[7].to(memory_format=torch.channels_last)
    for tensor in (stack[7], row, stack[:, 0, 0, 0, 0], torch.tensor(3), torch.empty(0, 2), torch.ones(1).expand(9)):
        sent = dumps(tensor)
        assert len(sent) < tensor.numel() * tensor.element_size() + 500
        received = loads(sent)
        torch.testing.assert_close(received, tensor, rtol=0, atol=0)
    assert loads(dumps(row)).stride() == row.stride()


@given(st.lists(st.integers(0, 1000)), st.integers(1, 9))
def test_shards_have_everyone_once_and_about_as_many_examples(sizes, number):
    parts = shards(sizes, number)
    assert sorted(place for part in parts for place in part) == list(range(len(sizes)))
    assert len(parts) == min(number, len(sizes))
    assert all(part == sorted(part) and part for part in parts)
    totals = [sum(sizes[place] + 1 for place in part) for part in parts]
    assert not totals or max(totals) - min(totals) <= max(sizes) + 1


def test_a_workers_answer_does_not_grow_with_the_cohort(engine, setup, monkeypatch):
    shared, sizes = setup.method.init_shared(setup.task), []

    def measured(answer):
        sizes.append(len(answer))
        return loads(answer)

    monkeypatch.setattr("coterie.clients.ray_crew.loads", measured)
    for cohort in ([0, 1], [0, 1, 2, 3, 4, 5]):
        personal, weights = [ref.store(setup)[i] for i in cohort], torch.ones(len(cohort), dtype=torch.float64)
        rnd = ref.announced(setup, len(cohort))
        engine.local_updates(setup.load, Cohort(shared, cohort, personal, weights, rnd))
    assert len(sizes) == 4
    assert min(sizes) > num_bytes(shared)
    assert max(sizes) - min(sizes) < 10 * 4  # names


# -- what is started, and what is left


def test_without_ray_the_command_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "coterie.clients.ray")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["coterie", "run", "--set", "engine.kind=ray", "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "pip install 'coterie[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-port"])
def test_an_address_without_a_cluster_is_named(address):
    with pytest.raises(UserError, match=f'engine.address = "{address}": no Ray cluster can be joined there'):
        ray_crew._join(address, 0)


def test_a_cluster_that_is_started_listens_to_this_machine_alone(cluster):
    assert ray.util.get_node_ip_address() == "127.0.0.1"


def test_work_that_kills_every_worker_ends_the_run(engine, load, monkeypatch):
    monkeypatch.setattr(ray_crew, "ATTEMPTS", 1)
    with pytest.raises(ConnectionError, match="Ray lost its worker at each of 1 attempts"):
        do(engine, load, die)


def test_closing_ends_what_was_started_and_nothing_else(cluster, engine):
    others = of_other_tests(os.getpid())
    started = descendants(os.getpid()) - others
    assert len(started) > 3
    engine.close()
    assert ray.is_initialized()
    cluster.close()
    assert not ray.is_initialized()
    deadline = time.monotonic() + SECONDS
    while (left := {pid for pid in started if Path(f"/proc/{pid}").exists()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def descendants(pid):
    """Return all processes that this process has started, directly or through another one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    found = [pid]
    for parent in found:
        found += [int(child) for child, its, name in rows if int(its) == parent and name != "ps"]
    return set(found[1:])


def of_other_tests(pid):
    """Return the fork servers and trackers that tests of benchmarks leave behind."""
    lines = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in descendants(pid)}
    return {child for child, line in lines.items() if b"multiprocessing" in line}


STARTED = """
import os, subprocess, sys
from coterie.clients.ray import Ray
crew = Ray(workers=1)._crew
import ray
address = ray.get_runtime_context().gcs_address
code = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10)"
without = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
for environment in (os.environ, without, {**without, "RAY_AUTH_MODE": "token"}):
    ended = subprocess.run([sys.executable, "-c", code, address], env=environment, capture_output=True, text=True)
    print(ended.returncode, "AuthenticationError" in ended.stderr)
crew.dismiss()
"""


@pytest.mark.skipif(tuple(map(int, ray.__version__.split(".")[:2])) < (2, 59), reason="older Ray has no tokens")
def test_only_children_may_use_a_cluster_that_is_started(tmp_path):
    """Neither a process without a token nor one with the token in the user's home is let in."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(64 * "0")
    fresh = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    fresh["HOME"] = str(tmp_path)
    command = [sys.executable, "-c", STARTED]
    ended = subprocess.run(command, env=fresh, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stdout.splitlines() == ["0 False", "1 True", "1 True"], ended.stderr
