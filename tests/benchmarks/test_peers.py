import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.peers import Rounds, Weights, Work, answer, ask, interpreters, reference, time_peers

from benchmarks import peers
from coterie.errors import UserError

SMALL = Work(clients=3, examples=10, features=6, hidden=5, classes=4, steps=5, batch=4)


def with_peer(monkeypatch: pytest.MonkeyPatch, play: Callable[[Work], Weights]) -> None:
    def peer(work: Work, repeats: int) -> Rounds:
        return play(work), [0.5] * repeats

    monkeypatch.setitem(peers.PEERS, "fedjax", peer)
    monkeypatch.setitem(peers.PACKAGES, "fedjax", ("numpy",))


def script(path: Path, content: str) -> str:
    path.write_text(f"#!/bin/sh\n{content}\n")
    path.chmod(0o755)
    return str(path)


def test_work_is_what_it_says() -> None:
    x, y = SMALL.data()
    assert (x.shape, x.dtype) == ((3, 10, 6), np.float32)
    assert (y.shape, y.min(), y.max()) == ((3, 10), 0, 3)
    assert {name: value.shape for name, value in SMALL.weights().items()} == {
        "0.weight": (5, 6),
        "0.bias": (5,),
        "2.weight": (4, 5),
        "2.bias": (4,),
    }
    assert all(value.dtype == np.float32 for value in SMALL.weights().values())
    assert [np.arange(10)[rows].tolist() for rows in SMALL.batches()] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_the_seed_decides() -> None:
    again, other = Work(3, 10, 6, 5, 4, 5, 4), Work(3, 10, 6, 5, 4, 5, 4, seed=1)
    np.testing.assert_array_equal(SMALL.data()[0], again.data()[0])
    assert not np.allclose(SMALL.data()[0], other.data()[0])
    assert not np.allclose(SMALL.weights()["0.weight"], other.weights()["0.weight"])


def test_batch_0_is_all_examples() -> None:
    assert Work(3, 10, 6, 5, 4, 2, 0).batches() == [slice(0, 10), slice(0, 10)]


def test_the_reference_is_fedavg() -> None:
    models = []
    for x, y in zip(*map(torch.from_numpy, SMALL.data()), strict=True):
        net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4))
        net.load_state_dict({name: torch.from_numpy(value) for name, value in SMALL.weights().items()})
        optimizer = torch.optim.SGD(net.parameters(), lr=SMALL.rate)
        for rows in (slice(0, 4), slice(4, 8), slice(8, 10), slice(0, 4), slice(4, 8)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        models.append(net.state_dict())
    for name, value in reference(SMALL).items():
        mean = torch.stack([model[name] for model in models]).mean(0)
        np.testing.assert_allclose(value, mean.numpy(), rtol=1e-5, atol=1e-6)


def test_the_same_work_gets_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with_peer(monkeypatch, reference)
    assert answer("fedjax", SMALL, 2) == {"versions": {"numpy": np.__version__}, "seconds": [0.5, 0.5]}


def test_other_work_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with_peer(monkeypatch, Work.weights)
    assert answer("fedjax", SMALL, 2)["skipped"].startswith("not the same work: 0.weight is off by 0.0")


def test_absent_peers_are_skipped_with_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("fedjax", "torch"):
        (tmp_path / f"{module}.py").write_text(f'raise ModuleNotFoundError("No module named {module!r}")')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("COTERIE_PEERS_PYTHON", raising=False)
    assert time_peers(SMALL, 1) == {
        "fedjax": "not installed: No module named 'fedjax'",
        "pfl": "not installed: No module named 'torch'",
        "flower": "not installed: No module named 'torch'",
    }


def test_a_peer_that_fails_says_why(tmp_path: Path) -> None:
    assert ask("pfl", SMALL, 1, script(tmp_path / "silent", "exit 3")) == {"skipped": "failed: exit code 3"}
    loud = script(tmp_path / "loud", "echo first >&2; echo last >&2; exit 1")
    assert ask("pfl", SMALL, 1, loud) == {"skipped": "failed: last"}


def test_a_peer_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "LIMIT", 0.5)
    slow = script(tmp_path / "slow", f"sleep 60 & echo $! > {tmp_path}/pid; wait")
    assert ask("pfl", SMALL, 1, slow) == {"skipped": "took more than 0.5 seconds"}
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while state.exists() and state.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_interpreters_are_named_by_the_environment() -> None:
    assert interpreters("") == {}
    assert interpreters(f" fedjax={sys.executable} ,flower=sh,") == {"fedjax": sys.executable, "flower": "sh"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fedjaks=python", "no peer 'fedjaks'"),
        ("/usr/bin/python", "no peer '/usr/bin/python' in NAME=PYTHON,...; available: fedjax, pfl, flower"),
        ("pfl", "the interpreter '' of pfl does not exist; write pfl=PYTHON"),
        (f"pfl={os.sep}no{os.sep}python", "the interpreter '/no/python' of pfl does not exist"),
    ],
)
def test_nonsense_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.setenv("COTERIE_PEERS_PYTHON", text)
    with pytest.raises(UserError, match="COTERIE_PEERS_PYTHON") as error:
        time_peers(SMALL, 1)
    assert message in str(error.value)
