"""Every byte between the couriers and the server, captured on the way: neither personal tensors nor data are in it."""

import hashlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.clients.flower_server import FlowerTransport
from coterie.clients.sites import Patience
from coterie.core.tree import Tree
from coterie.data.federation import Federation
from coterie.data.own.export import write_client
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.run import Run
from coterie.sites import certs, policy, sent
from coterie.sites.server import Asking, gather
from coterie.storage.files import make_private
from coterie.training import Training
from realsites import until
from sites.deployment import recipe
from sites.proxy import Proxy, proxied

ROUNDS = 3


@dataclass
class Captured:
    """A run between real processes, and what was sent."""

    settings: Recipe
    federation: Federation
    proxy: Proxy
    folder: Path
    expected: list[Run]
    """Simulations of the first rounds: of none, of one, ..."""

    def streams(self, *directions: list[bytearray]) -> list[bytes]:
        return [bytes(content) for direction in directions for content in direction]

    @property
    def everything(self) -> list[bytes]:
        return self.streams(self.proxy.up, self.proxy.down)


@contextmanager
def site(folder: Path, name: str, server: str) -> Iterator[None]:
    options = ["--server", server, "--name", name, "--data", folder / "data.npz", "--state", folder]
    command = [sys.executable, "-m", "coterie", "client", *options, "--key", folder / f"{name}.key", "--insecure"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def captured(method: str, folder: Path) -> Captured:
    settings = recipe(method, ROUNDS)
    settings = replace(settings, run=replace(settings.run, clients_per_round=2, eval_every=2))
    settings = replace(settings, partition=replace(settings.partition, clients=2, classes_per_client=5))
    federation, roster = settings.federation(), {}
    transport = FlowerTransport(folder / "server", "127.0.0.1:0", None, lambda: roster)
    try:
        with proxied(transport.address) as proxy:
            for i, name in enumerate(federation.ids):
                make_private(folder / name)
                roster[certs.openssh(certs.site(folder / name, name).public.read_bytes())] = name
                (folder / name / policy.FILE).write_text('mode = "accept-all"\n')
                write_client(federation, i, folder / name / "data.npz")
            with site(folder / "0", "0", proxy.address), site(folder / "1", "1", proxy.address):
                until(lambda: transport.connected() == {"0", "1"}, "both sites are connected")
                ready = gather(Asking(settings, Patience(60.0)), transport, list(federation.ids))
                found = Training(ready.asking.recipe, ready.prepared).play()
    finally:
        transport.close()
    expected = [simulated(settings, federation, number) for number in range(1, ROUNDS + 1)]
    for name, value in expected[-1].shared.items():
        assert torch.equal(found.shared[name], value), name
    return Captured(settings, federation, proxy, folder, expected)


def simulated(settings: Recipe, federation: Federation, rounds: int) -> Run:
    return Training(replace(settings, run=replace(settings.run, rounds=rounds, checkpoint_every=1)), federation).play()


METHODS = ["pflego", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ditto", "scafflix"))]


@pytest.fixture(scope="module", params=METHODS)
def capture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return captured(request.param, tmp_path_factory.mktemp(request.param))


def holds(streams: list[bytes], pattern: bytes) -> bool:
    return any(pattern in stream for stream in streams)


def forms(array: np.ndarray) -> Iterator[bytes]:
    """Yield the bytes of an array in the types in which it might be sent, unless it is almost all zeros there."""
    kinds = [np.float32, np.float64, np.float16]
    if (array == np.round(array)).all():
        kinds += [np.uint8, np.int64, np.int32]
    for kind in kinds:
        if np.count_nonzero(found := array.astype(kind)) > 2:
            yield found.tobytes()


def personal(capture: Captured, client: str) -> Iterator[tuple[str, Tree]]:
    """Yield all states of a site, apart from what its method puts into letters."""
    letters = prepare(capture.settings, capture.federation).clients.load.work.letter
    for number, run in enumerate(capture.expected, 1):
        for name, value in run.personal(client).items():
            if value.numel() > 2 and value.any() and name not in letters:
                yield f"{name} after round {number}", value


def test_the_shared_model_is_found(capture):
    """The control of the tests below: what is sent is found in this way."""
    assert len(capture.everything) > 2
    for run in capture.expected[:-1]:
        for name, value in run.shared.items():
            assert holds(capture.streams(capture.proxy.down), value.numpy().tobytes()), name


def rows(value: torch.Tensor) -> np.ndarray:
    return value.numpy().reshape(-1, value.shape[-1])


def test_no_personal_state_is_sent(capture):
    """Rows that nothing has changed are those of the initial model, which everyone draws from the seed."""
    model = prepare(capture.settings, capture.federation).clients.load.work.task.initial
    initial, checked = {row.tobytes() for value in model.values() for row in rows(value)}, 0
    for client in capture.federation.ids:
        for name, value in personal(capture, client):
            checked += 1
            for row in rows(value):
                for pattern in forms(row) if row.tobytes() not in initial else ():
                    assert not holds(capture.everything, pattern), f"{client}: {name}"
    assert checked


def test_no_example_is_sent(capture):
    federation = capture.federation
    for example in federation.x.reshape(len(federation.x), -1).numpy():
        for pattern in forms(example):
            assert not holds(capture.everything, pattern)
    for client, name in enumerate(federation.ids):
        y = federation.y[federation.splits["train"].row(client)].numpy()
        own = np.searchsorted(federation.classes.row(client), y)
        names = np.array([int(federation.labels[k]) for k in y])
        for pattern in (*forms(y), *forms(own), *forms(names)):
            assert not holds(capture.everything, pattern), name


def test_everything_that_a_site_sends_is_in_its_log(capture):
    """Each message of the capture is a line of a log, and the other way round."""
    logged = [each for name in capture.federation.ids for each in sent.read(capture.folder / name)]
    found = [message for stream in capture.streams(capture.proxy.up) for message in messages(stream, logged)]
    assert len(logged) > 2 * ROUNDS
    assert set(found) == {each.digest for each in logged}  # Flower fetches equal bytes of two sites from one of them


def messages(stream: bytes, logged: list[sent.Sent]) -> Iterator[str]:
    """Yield the sha256 of each message of a site in a stream. It begins with the length of a head in JSON."""
    sizes = {each.digest: each.bytes for each in logged}
    place = -1
    while (place := stream.find(b'{"', place + 1)) >= 0:
        size = struct.unpack("<Q", stream[place - 8 : place])[0] if place >= 8 else 0
        if size > 1 << 20 or b'"kind": "' not in stream[place : place + size]:
            continue  # the part of a message with tensors has a head of the same form
        candidates = {hashlib.sha256(stream[place - 8 : place - 8 + size]).hexdigest() for size in set(sizes.values())}
        known = candidates & sizes.keys()
        assert known, f"a message that is in no log: {stream[place : place + 100]!r}"
        yield known.pop()
