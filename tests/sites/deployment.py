"""A server and sites as real processes on the loopback address, and what their run should have ended with."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import tomli_w
import torch
from safetensors.torch import load_file

import coterie
from coterie.clients.simulated import Simulated
from coterie.core.answers import planned
from coterie.core.round import Round
from coterie.core.tree import Tree
from coterie.measure.record import Record
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.server.round import play_round
from coterie.sites.local import Local, last_words
from coterie.sites.server import EVERYONE
from coterie.storage.files import unpacked
from coterie.training import Training
from sites.test_equality import assert_equal

PATIENCE = 240.0
"""Seconds that a run may take on a busy machine."""
OPTIONS = ("--json", "--wait", "120", "--deadline", "60")


def recipe(method: str, rounds: int = 5, **settings: object) -> Recipe:
    return Recipe.parse(
        {
            "data": {"name": "digits"},
            "partition": {"clients": 4, "classes_per_client": 4, "new_users": 0.0},
            "model": {"name": "mlp", "hidden": [16]},
            "method": {"name": method, **settings},
            "run": {"rounds": rounds, "clients_per_round": 3, "seed": 1, "eval_every": 5},
            "engine": {"threads": 1, "kind": "loop"},
            "eval": {"adapt_steps": 2},
        }
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def local(settings: Recipe, folder: Path, *options: str) -> Iterator[Local]:
    """Start a server and sites. One thread each, because the number of threads can change the last bits."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        with Local(folder, settings.federation(), free_port()) as made:
            made.prepare()
            tree = {name: table for name, table in settings.as_dict().items() if name not in ("data", "partition")}
            (folder / "recipe.toml").write_text(tomli_w.dumps(tree))
            made.start(["--recipe", str(folder / "recipe.toml"), *OPTIONS, *options])
            yield made
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def until(made: Local, holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"{what} did not happen: {last_words(made.folder / 'server.log')}"
        time.sleep(0.1)


def ended(made: Local) -> None:
    assert made.server is not None
    until(made, lambda: made.server.poll() is not None, "the end of the run")
    assert made.server.returncode == 0, last_words(made.folder / "server.log")


def rounds(made: Local) -> int:
    file = made.run / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def written(file: Path) -> list[Record]:
    """Return the records of a run that goes on. The last line may be half-written."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [Record.from_json(json.loads(line)) for line in lines]


def personal(made: Local, name: str) -> Tree:
    """Return the personal state that a site has stored with its model at the end of the run."""
    return unpacked(load_file(next((made.site(name) / "runs").glob("*/personal.safetensors"))))


def assert_as_simulated(made: Local, settings: Recipe) -> None:
    """Compare the shared model, all personal states, and the figures of each round."""
    expected = Training(replace(settings, run=replace(settings.run, checkpoint_every=1)), made.federation).play()
    found = coterie.load(made.run)
    assert_equal(found.shared, expected.shared, "shared")
    for name in made.federation.ids:
        assert_equal(personal(made, name), expected.personal(name), name)
        x = made.federation.x[:5].float()
        assert torch.equal(coterie.load(made.site(name)).model()(x), expected.model(name)(x))
    assert [(r.cohort, r.train_loss) for r in found.history] == [(r.cohort, r.train_loss) for r in expected.history]
    assert found.summary.existing == expected.summary.existing


def assert_as_replayed(made: Local, settings: Recipe) -> None:
    """Compare the shared model and all personal states with a simulation of the replies that were accepted."""
    shared, clients = replayed(made, settings)
    assert_equal(coterie.load(made.run).shared, shared, "shared")
    for i, name in enumerate(made.federation.ids):
        assert_equal(personal(made, name), clients.personal(i), name)


def replayed(made: Local, settings: Recipe) -> tuple[Tree, Simulated]:
    """Play the recorded rounds in a simulation, with the replies that were accepted."""
    _, clients, rounds = prepare(settings, made.federation)
    numbers = {name: i for i, name in enumerate(clients.ids)}
    present, most = (len(numbers), int(clients.sizes().sum())), settings.run.clients_per_round or EVERYONE
    for record in coterie.load(made.run).history:
        if record.population:
            present = record.population.clients, record.population.examples
        cohort = [numbers[name] for name in record.cohort if name not in record.refused]
        rnd = planned(rounds.method, Round(record.round, *present, min(most, present[0]), settings.run.seed))
        played = play_round(rounds.method, rounds.task, clients, rounds.shared, rounds.memory, cohort, rnd)
        rounds.shared, rounds.memory = played.shared, played.memory
    return rounds.shared, clients


def children(pid: int) -> list[tuple[int, str]]:
    """Return the processes below a process, with their commands."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found += [(child, command), *children(child)]
    return found


def kill(process: subprocess.Popen[bytes], word: str = "") -> None:
    """Kill the process below another one whose command contains a word, or that process itself."""
    if not word:
        process.kill()
        process.wait()
        return
    (pid, _), *_ = [(pid, command) for pid, command in children(process.pid) if word in command]
    os.kill(pid, signal.SIGKILL)
