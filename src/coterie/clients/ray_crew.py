"""The workers of a Ray cluster, and how they are given work.

A worker computes pure functions of what it is sent. If a worker is lost, another one repeats its job with the same
result.
"""

import io
import logging
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import ray
import torch
from ray._private import ray_constants
from ray.cloudpickle import CloudPickler, loads
from ray.exceptions import RayError, RayTaskError
from torch import Tensor

from coterie.clients.choose import choose
from coterie.clients.engine import Engine
from coterie.clients.workload import Workload
from coterie.core.method import Tree
from coterie.errors import UserError

ATTEMPTS = 4
"""Number of times a job is tried before its clients are considered the reason that workers die."""
PATIENCE = 120.0
"""Seconds that a worker may take to start. The cluster may have to make room first."""

Job = Callable[[Engine, Workload, Tree], Any]

logger = logging.getLogger("coterie")


class Worker:
    """A worker process, somewhere in the cluster."""

    def __init__(self, threads: int, path: list[str]) -> None:
        torch.set_num_threads(threads)
        sys.path += [folder for folder in path if folder not in sys.path]  # a model may come from the driver's own code

    def hold(self, held: bytes) -> None:
        self._engine, self._load = loads(held)

    def do(self, job: bytes, shared: bytes) -> bytes:
        return dumps(loads(job)(self._engine, self._load, loads(shared)))


class Crew:
    """The workers of one run."""

    def __init__(self, address: str, size: int, threads: int, memory: float) -> None:
        self._threads, self._memory = max(threads, 1), memory
        self._joined = not ray.is_initialized()
        if self._joined:
            _join(address, size * self._threads)
        cpus = int(ray.cluster_resources().get("CPU", 1))  # type: ignore[no-untyped-call]
        self.size = size or max(1, cpus // self._threads)
        """Number of workers wanted. Fewer may be available, but no result depends on that."""
        self._load: Workload | None = None
        self._workers: dict[Any, Any] = {}
        """Workers, each with the answer that it gives once it is ready."""

    def take_up(self, load: Workload) -> None:
        """Send what the next jobs are about to each worker, once."""
        if load is self._load:
            return
        engine, why = choose(load, self._memory)
        self._load, self._held = load, ray.put(dumps((engine, load)))
        self._workers = {worker: worker.hold.remote(self._held) for worker in self._workers}
        while len(self._workers) < self.size:
            self._hire()
        ready, _ = ray.wait(list(self._workers.values()), num_returns=self.size, timeout=PATIENCE)
        name = type(engine).__name__.lower()
        logger.info("ray: %d of %d workers, each with the engine %s (%s)", len(ready), self.size, name, why)

    def do(self, load: Workload, shared: Tree, jobs: Sequence[Job]) -> list[Any]:
        """Return the results of the jobs, in their order."""
        self.take_up(load)
        sent, packed = ray.put(dumps(shared)), [dumps(job) for job in jobs]
        results: dict[int, Any] = {}
        lost: RayError | None = None
        for _ in range(ATTEMPTS):
            left = [place for place in range(len(jobs)) if place not in results]
            if not left:
                break
            turns = zip(left, cycle(self._present()), strict=False)
            asked = [(place, worker, worker.do.remote(packed[place], sent)) for place, worker in turns]
            for place, worker, answer in asked:
                try:
                    results[place] = loads(ray.get([self._workers.get(worker, answer), answer])[-1])
                except RayTaskError as error:
                    raise error.cause from error
                except RayError as error:
                    lost = error
                    self._replace(worker)
        if len(results) < len(jobs):
            raise ConnectionError(f"Ray lost its worker at each of {ATTEMPTS} attempts at the same clients: {lost}")
        return [results[place] for place in range(len(jobs))]

    def dismiss(self) -> None:
        """Leave the cluster as it was. A cluster that was started for this crew ends."""
        if self._joined:
            ray.shutdown()
            return
        for worker in self._workers:
            ray.kill(worker)

    def _present(self) -> list[Any]:
        """Return the workers that are ready. Wait only if none is."""
        ready = list(self._workers.values())
        there, _ = ray.wait(ready, num_returns=len(ready), timeout=0)
        if not there:
            there, _ = ray.wait(ready, timeout=PATIENCE)
        if not there:
            raise ConnectionError(f"no worker could be started on the Ray cluster within {PATIENCE:.0f} s; is it full?")
        return [worker for worker, answer in self._workers.items() if answer in there]

    def _hire(self) -> None:
        remote: Any = ray.remote(num_cpus=self._threads)(Worker)
        worker = remote.remote(self._threads, sys.path)
        self._workers[worker] = worker.hold.remote(self._held)

    def _replace(self, worker: Any) -> None:
        if self._workers.pop(worker, None):
            logger.warning("ray: a worker was lost; other workers repeat its share")
            self._hire()


def _join(address: str, cpus: int) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if not address:
        with _loopback():
            ray.init("local", num_cpus=cpus or None, include_dashboard=False, **quiet)
        return
    try:
        _knock(address)
        ray.init(address, **quiet)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise UserError(
            f'engine.address = "{address}": no Ray cluster can be joined there: {error} '
            "(one that asks for a token is joined with RAY_AUTH_MODE=token in the environment)"
        ) from None


@contextmanager
def _loopback() -> Iterator[None]:
    """Make a cluster that is started inside listen to this machine only.

    Ray does so by default on macOS and Windows only. Its setting for that must come before the import of Ray, and the
    user may have imported Ray already.
    """
    usual, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = usual


def _knock(address: str) -> None:
    """Check that something listens there. Ray itself would keep trying for ten minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit() and "/" not in host:
        if host in ("localhost", "127.0.0.1"):
            host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call] # as Ray interprets it
        socket.create_connection((host, int(port)), timeout=10).close()


class _Pickler(CloudPickler):
    """A pickler that takes a tensor and its layout. PyTorch would pickle a row of a stacked tensor with all rows."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not Tensor or obj.requires_grad:
            return super().reducer_override(obj)  # type: ignore[no-untyped-call]
        own = obj.clone()
        return _tensor, (own.as_strided((own.numel(),), (1,)).numpy(), tuple(own.shape), own.stride())


def _tensor(flat: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(flat).as_strided(shape, strides)


def dumps(value: object) -> bytes:
    """Return a value as it travels to a worker."""
    file = io.BytesIO()
    _Pickler(file).dump(value)  # type: ignore[no-untyped-call]
    return file.getvalue()
