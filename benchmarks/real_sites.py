"""K: real sites on this machine: seconds of a round and where they go, memory of a site, recovery after a kill.

A server and sites with TLS, keys and an sqlite database, all started as a user starts them. Processes are observed in
/proc, so that this needs Linux. "Transport" is everything that only exists because sites are elsewhere: the couriers,
the gateway, the SuperLink, and the server process while it sends, waits and receives.
"""

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from benchmarks.result import Figure, Result
from benchmarks.timing import Seconds
from coterie.clients.flower_server import free_port
from coterie.recipe import Recipe
from coterie.sites.local import Local, last_words

TICKS = os.sysconf("SC_CLK_TCK")
KINDS = {"flower_courier": "courier", "flower_gateway": "gateway", "superlink": "SuperLink", " client ": "site"}
"""Words in a command, and what the process is called. Any other process is the server's own."""
TRANSPORT = ("courier", "gateway", "SuperLink", "server")
PATIENCE = 200.0
"""Seconds without a round after which the benchmark gives up."""
PARTITION = {"clients": 4, "classes_per_client": 5, "new_users": 0.0}
DIGITS: dict[str, Any] = {
    "partition": PARTITION,
    "model": {"name": "mlp", "hidden": [200]},
    "method": {"name": "pflego", "tau": 20},
}
LARGE: dict[str, Any] = {
    "partition": PARTITION,
    "model": {"name": "mlp", "hidden": [3500, 3500]},
    "method": {"name": "fedavg", "tau": 1, "batch_size": 10},
}
"""A model of 50 MB, with so little work that a round is nearly all transport."""
SITES = (4, 8)
KILLED = ("site", "courier", "gateway", "SuperLink", "server")


@dataclass
class Watched:
    """What was seen of a run."""

    first: float = 0.0
    """Seconds from the start of the first process to the end of the first round."""
    rounds: list[float] = field(default_factory=list)
    """Seconds of each round but the first one and the last one, which also evaluates."""
    cpu: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds per round, by kind of process."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """Largest peak memory of a process in MB, by kind."""
    asking: float = 0.0
    """Seconds of a round from the first request to the last reply."""


def measure(repeats: int) -> Result:
    """Play runs of `repeats` + 3 rounds, and one in which every process is killed."""
    few, many = SITES
    four, eight = watched(DIGITS, few, repeats + 3), watched(DIGITS, many, repeats + 3)
    large, back = watched(LARGE, few, repeats + 3), kills()
    bare = peak_of_bare_torch()
    rounds = statistics.median(four.rounds)
    seconds: Seconds = {
        "4 sites: a round": four.rounds,
        "of it, from the first request to the last reply": [four.asking],
        "8 sites: a round": eight.rounds,
        "4 sites with a model of 50 MB: a round": large.rounds,
        **{f"until the next round after a kill of the {name}": [each] for name, each in back.items()},
    }
    seconds |= {f"4 sites: CPU time of a round, {kind}": [four.cpu[kind]] for kind in ("site", *TRANSPORT)}
    beside = four.memory["courier"] + four.memory["site"] - bare
    figures = [
        Figure("4 sites: a round", rounds, at_most=2.5, unit=" s"),
        Figure("4 sites: CPU time of transport in a round", _transport(four), at_most=2, unit=" s"),
        Figure("memory of a site beside that of `import torch`", beside, at_most=120, unit=" MB"),
        Figure("from the start to the end of the first round", four.first, at_most=20, unit=" s"),
        Figure("8 sites: a round, over that of 4", statistics.median(eight.rounds) / rounds, at_most=2),
        Figure("4 sites with a model of 50 MB: a round", statistics.median(large.rounds), at_most=8, unit=" s"),
        Figure("longest time until the next round after a kill", max(back.values()), unit=" s"),
    ]
    notes = [
        f"Peak memory: courier {four.memory['courier']:.0f} MB, site process {four.memory['site']:.0f} MB, a process "
        f"that only imports PyTorch {bare:.0f} MB, SuperLink {four.memory['SuperLink']:.0f} MB; with the model of 50 "
        f"MB: courier {large.memory['courier']:.0f} MB, SuperLink {large.memory['SuperLink']:.0f} MB.",
        f"8 sites: {_transport(eight):.2f} CPU seconds of transport in a round; 50 MB: {_transport(large):.2f}.",
    ]
    return Result("K: real sites on this machine", seconds, figures, notes)


def watched(sections: Mapping[str, Any], sites: int, number: int) -> Watched:
    """Play a run with this many sites and rounds, and watch its processes."""
    made, start = Watched(), time.perf_counter()
    with running(sections, sites, number) as local:
        times: list[float] = []
        begun: dict[str, float] = {}
        while len(times) < number - 1:
            _next_round(local, len(times))
            times.append(time.perf_counter())
            if len(times) == 1:
                begun = _cpu(local)
        spent = _cpu(local)
        made.memory = _peaks(local)
        records = [json.loads(line) for line in (local.run / "rounds.jsonl").read_text().splitlines()]
    made.first = times[0] - start
    made.rounds = [after - before for before, after in itertools.pairwise(times)]
    made.cpu = {kind: (spent[kind] - begun.get(kind, 0.0)) / len(made.rounds) for kind in spent}
    made.asking = statistics.median(record["cost"]["seconds"] for record in records[1 : number - 1])
    return made


def kills() -> dict[str, float]:
    """Kill each kind of process once, and return the seconds until the round after the next one has ended.

    The round that is going on when a process is killed may end without it, so that one more is waited for.
    """
    found = {}
    with running(DIGITS, SITES[0], 1000) as local:
        for name in KILLED:
            _next_round(local, _rounds(local))
            pid = next(pid for pid, kind in _processes(local) if kind == name)
            os.kill(pid, signal.SIGKILL)
            start, done = time.perf_counter(), _rounds(local)
            if name == "site":
                (gone,) = [each for each, process in local.sites.items() if process.pid == pid]
                local.sites[gone].wait()
                local.start_site(gone)
            if name == "server":
                assert local.server is not None
                local.server.wait()
                local.start_server(_ARGUMENTS)
            _next_round(local, done + 1)
            found[name] = time.perf_counter() - start
    return found


_ARGUMENTS = ["--json", "--wait", "120", "--deadline", "120"]


@contextmanager
def running(sections: Mapping[str, Any], sites: int, number: int) -> Iterator[Local]:
    """Start a server and sites."""
    run = {"rounds": number, "eval_every": number, "seed": 1}
    tree = {**sections, "partition": {**sections["partition"], "clients": sites}, "data": {"name": "digits"}}
    recipe = Recipe.parse({**tree, "run": run, "eval": {"adapt_steps": 1}})
    with (
        tempfile.TemporaryDirectory() as folder,
        Local(Path(folder) / "all", recipe.federation(), free_port()) as local,
    ):
        local.prepare()
        kept = {name: table for name, table in recipe.as_dict().items() if name not in ("data", "partition")}
        file = local.folder / "recipe.toml"
        file.write_text(tomli_w.dumps(kept))
        local.start(["--recipe", str(file), *_ARGUMENTS])
        yield local


def peak_of_bare_torch() -> float:
    """Return the peak memory in MB of a process that only imports PyTorch."""
    code = "import torch; print(open('/proc/self/status').read())"
    status = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout  # noqa: S603
    return _peak(status)


def _transport(seen: Watched) -> float:
    return sum(seen.cpu[kind] for kind in TRANSPORT)


def _rounds(local: Local) -> int:
    file = local.run / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _next_round(local: Local, done: int) -> None:
    """Wait until more rounds than `done` have ended."""
    end = time.perf_counter() + PATIENCE
    while _rounds(local) <= done:
        if time.perf_counter() > end:
            raise TimeoutError(f"no round within {PATIENCE:g} s: {last_words(local.folder / 'server.log')}")
        time.sleep(0.01)


def _processes(local: Local) -> list[tuple[int, str]]:
    """Return all processes of a run, with their kinds."""
    assert local.server is not None
    waiting, found = [local.server.pid, *(process.pid for process in local.sites.values())], []
    while waiting:
        pid = waiting.pop()
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:  # it has just ended
            continue
        found.append((pid, next((kind for word, kind in KINDS.items() if word in command), "server")))
    return found


def _by_kind(local: Local, read: Callable[[int], float], join: Callable[[Sequence[float]], float]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for pid, kind in _processes(local):
        values.setdefault(kind, []).append(read(pid))
    return {kind: join(each) for kind, each in values.items()}


def _cpu(local: Local) -> dict[str, float]:
    def read(pid: int) -> float:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS

    return _by_kind(local, read, sum)


def _peaks(local: Local) -> dict[str, float]:
    return _by_kind(local, lambda pid: _peak(Path(f"/proc/{pid}/status").read_text()), max)


def _peak(status: str) -> float:
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
