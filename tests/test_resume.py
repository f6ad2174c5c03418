"""A run that is killed or stopped at any moment and then resumed ends in the same bits as an uninterrupted one."""

import csv
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.storage.artifact import ANNOUNCEMENT, INITIAL, MEMBERS
from coterie.storage.checkpoint import load_checkpoint
from coterie.storage.origin import read_origin
from coterie.storage.store import PersonalStore
from engines import slow_unless

CLIENTS = 10
SETTINGS = [
    "run.rounds=12",
    "run.eval_every=4",
    "run.checkpoint_every=3",
    "run.clients_per_round=3",
    f"partition.clients={CLIENTS}",
    "method.tau=2",
]
RUN = [sys.executable, "-c", "from coterie.cli import main; main()", "run"]
CHANGES = [part for setting in SETTINGS for part in ("--set", setting)]


def finished(folder: Path) -> dict[str, object]:
    """Return everything that a run leaves behind, except for the seconds it took."""

    def timeless(record: dict) -> dict:
        seal = {"sha256": None}  # it covers the seconds, too
        return {**record, **seal, "cost": {**record["cost"], "seconds": None, "eval_seconds": None}}

    last = sorted((folder / "checkpoint").glob("round-*"))[-1]
    files = {file.name: file.read_bytes() for file in last.iterdir()}
    manifest = json.loads(files.pop("manifest.json"))
    del files["manifest.sha256"], manifest["personal"]
    return {
        "checkpoint": files,
        "manifest": manifest,
        "personal": personal(folder),
        "round": last.name,
        "rounds": [timeless(json.loads(line)) for line in (folder / "rounds.jsonl").read_text().splitlines()],
        "summary": timeless(json.loads((folder / "summary.json").read_text())),
        "clients": list(csv.reader((folder / "clients.csv").read_text().splitlines())),
        "recipe": (folder / "recipe.toml").read_text(),
        **{name: (folder / name).read_bytes() for name in (ANNOUNCEMENT, INITIAL, MEMBERS)},
    }


def personal(folder: Path) -> list[dict[str, tuple]]:
    """Return each client's state in bits. How states are divided into files depends on where a run was interrupted."""
    store = PersonalStore(lambda client: {}, CLIENTS, torch.device("cpu"))
    index, _ = load_checkpoint(folder / "checkpoint", store, read_origin(folder).run)
    assert f"round-{index:06d}" == max(path.name for path in (folder / "checkpoint").glob("round-*"))
    states = [
        {name: (value.dtype, value.shape, value.numpy().tobytes()) for name, value in store[client].items()}
        for client in range(CLIENTS)
    ]
    assert sum(map(bool, states)) > 5
    return states


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    subprocess.run([*RUN, *CHANGES, "--out", folder], check=True, capture_output=True, timeout=120)
    return finished(folder)


def start_and_wait(arguments: list, folder: Path, rounds: int) -> subprocess.Popen:
    """Start a process and return it once it has written that many rounds."""
    process = subprocess.Popen([*RUN, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        log = folder / "rounds.jsonl"
        if log.exists() and log.read_bytes().count(b"\n") >= rounds:
            return process
        time.sleep(0.001)
    raise AssertionError(f"did not reach round {rounds}: {process.communicate()}")


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("moments", [[1], [2, 5, 8], [3, 9]])
def test_killed_and_resumed(undisturbed, tmp_path, moments):
    folder = tmp_path / "run"
    arguments = [*CHANGES, "--out", folder]
    for moment in moments:
        kill(start_and_wait(arguments, folder, moment))
        assert not (folder / "summary.json").exists()
        arguments = ["--resume", folder]
    subprocess.run([*RUN, "--resume", folder], check=True, capture_output=True, timeout=120)
    assert finished(folder) == undisturbed


def test_a_method_with_letters_is_killed_and_resumed(tmp_path):
    """Letters live within a round. What they leave is in the personal states of clients."""
    changes = [*CHANGES, "--set", "method.name=fedpac"]
    subprocess.run([*RUN, *changes, "--out", tmp_path / "whole"], check=True, capture_output=True, timeout=120)
    kill(start_and_wait([*changes, "--out", tmp_path / "run"], tmp_path / "run", 5))
    subprocess.run([*RUN, "--resume", tmp_path / "run"], check=True, capture_output=True, timeout=120)
    assert finished(tmp_path / "run") == finished(tmp_path / "whole")


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(undisturbed, tmp_path):
    folder = tmp_path / "run"
    process = start_and_wait([*CHANGES, "--out", folder], folder, 1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    stopped_at = len((folder / "rounds.jsonl").read_text().splitlines())
    assert stopped_at < 12
    assert (folder / "checkpoint" / f"round-{stopped_at:06d}").is_dir()
    command = re.search(r"run (--resume .*)", errors).group(1).split()
    subprocess.run([*RUN, *command], check=True, capture_output=True, timeout=120)
    assert finished(folder) == undisturbed


def test_a_damaged_checkpoint_and_a_half_written_line(undisturbed, tmp_path):
    folder = tmp_path / "run"
    kill(start_and_wait([*CHANGES, "--out", folder], folder, 8))
    newest = sorted((folder / "checkpoint").glob("round-*"))[-1]
    *_, segment = json.loads((newest / "manifest.json").read_text())["personal"]
    payload = folder / "checkpoint" / "personal" / f"{segment}.safetensors"
    content = bytearray(payload.read_bytes())
    content[-1] ^= 1
    payload.write_bytes(content)
    with (folder / "rounds.jsonl").open("a") as log:
        log.write('{"round": 9, "coh')
    done = subprocess.run([*RUN, "--resume", folder], check=True, capture_output=True, text=True, timeout=120)
    assert "is damaged" in done.stderr
    assert finished(folder) == undisturbed


def test_equal_runs_have_equal_checkpoints(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"c{i}": (rng.normal(size=(6, 4)), np.arange(6) % 2, np.zeros((1, 4)), [0]) for i in range(8)}
    for name in ("one", "two"):
        federation = coterie.Federation.from_arrays(arrays)
        coterie.train(federation, rounds=6, clients_per_round=3, checkpoint_every=1, eval_every=6, out=tmp_path / name)

    def files(folder: Path) -> dict[Path, bytes]:
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert len(files(tmp_path / "one" / "checkpoint")) > 8
    assert files(tmp_path / "one" / "checkpoint") == files(tmp_path / "two" / "checkpoint")


@pytest.mark.parametrize(
    ("model", "shape", "method"),
    [
        slow_unless((model, method) in (("conv4", "fedavg"), ("cnn-cifar", "scaffold")), model, shape, method)
        for model, shape in (("conv4", (28, 28)), ("cnn-femnist", (28, 28)), ("cnn-cifar", (3, 32, 32)))
        for method in ("fedavg", "pflego", "scaffold", "fedadam")
    ],
)
def test_convolutions_resume_to_the_same_bits(tmp_path, model, shape, method):
    """The shared model has the same memory layout in every round, so that products round alike after a resume."""
    rng = np.random.default_rng(0)
    arrays = {f"c{i}": (rng.normal(size=(8, *shape)), np.arange(8) % 2) for i in range(4)}
    options = {"model": model, "method": method, "clients_per_round": 2, "checkpoint_every": 1, "adapt_steps": 1}
    options |= {"settings": {"method": {"tau": 3}}, "engine": "loop"}
    federation = coterie.Federation.from_arrays(arrays)
    whole = coterie.train(federation, rounds=3, **options)
    coterie.train(federation, rounds=1, out=tmp_path / "run", **options)
    resumed = coterie.train(federation, rounds=3, out=tmp_path / "run", resume=True, **options)
    initial = coterie.train(federation, rounds=0, **options).shared
    for name, value in whole.shared.items():
        assert torch.equal(value, resumed.shared[name]), name
        assert value.stride() == initial[name].stride(), name


def test_a_run_that_everyone_has_left_ends_with_a_table_of_nobody(tmp_path):
    """It also has the figures of its rounds, and the table has the same columns as that of a run with clients."""
    rng = np.random.default_rng(0)
    arrays = {name: (rng.normal(size=(6, 4)), np.arange(6) % 2, np.zeros((1, 4)), [0]) for name in ("anna", "ben")}
    federation = coterie.Federation.from_arrays(arrays)
    gone = {"schedule": [{"round": 2, "leave": ["anna", "ben"]}]}
    coterie.train(federation, rounds=2, out=tmp_path / "there")
    coterie.train(federation, rounds=2, population=gone, out=tmp_path / "gone")
    there, none = ((tmp_path / name / "clients.csv").read_text().splitlines() for name in ("there", "gone"))
    assert len(there) == 3
    assert none == there[:1]
    assert json.loads((tmp_path / "gone" / "summary.json").read_text())["existing"]["as_is"]["mean"] is None
    assert (tmp_path / "gone" / "report.html").exists()


def test_one_folder_one_process(tmp_path):
    folder = tmp_path / "run"
    process = start_and_wait([*CHANGES, "--set", "run.rounds=500", "--out", folder], folder, 1)
    try:
        second = subprocess.run([*RUN, "--resume", folder], capture_output=True, text=True, timeout=60)
        assert second.returncode == 2
        assert "in use by another process" in second.stderr
    finally:
        kill(process)


def test_a_finished_run_goes_on_for_more_rounds(undisturbed, tmp_path):
    """It equals a run that was that long from the start, except for the evaluation where it first ended."""
    folder = tmp_path / "run"
    subprocess.run([*RUN, *CHANGES, "--set", "run.rounds=7", "--out", folder], check=True, timeout=120)
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 7
    subprocess.run([*RUN, "--resume", folder, "--set", "run.rounds=12"], check=True, timeout=120)
    found = finished(folder)
    assert "eval" in found["rounds"][6]
    del found["rounds"][6]["eval"]
    for key, value in undisturbed.items():
        if key != "summary":
            assert found[key] == value, key
    assert found["summary"]["existing"]["as_is"]["mean"] == undisturbed["summary"]["existing"]["as_is"]["mean"]
    fewer = subprocess.run([*RUN, "--resume", folder, "--set", "run.rounds=9"], capture_output=True, text=True)
    assert fewer.returncode == 2
    assert "run.rounds (12 there, 9 here)" in " ".join(fewer.stderr.split())
