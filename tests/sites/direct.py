"""Sites in this process, behind a transport that hands over bytes. Tests can drop, change and repeat messages."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.clients.sites import Patience
from coterie.clients.transport import Failure, Transport
from coterie.clients.wire import decode
from coterie.data.federation import Federation
from coterie.recipe import Recipe
from coterie.run import Run
from coterie.sites.agent import Agent
from coterie.sites.beginning import Beginning
from coterie.sites.server import Asking, Ready, gather
from coterie.training import Training

Fault = Callable[[str, bytes, Callable[[bytes], bytes]], bytes | Failure]
"""Takes the name of a site, a request, and the function that answers it."""


def faultless(name: str, request: bytes, answer: Callable[[bytes], bytes]) -> bytes:
    return answer(request)


class Direct(Transport):
    """All sites in this process, each with a folder of its own."""

    def __init__(self, federation: Federation, folder: Path, fault: Fault = faultless) -> None:
        self.own = {name: alone(federation, i) for i, name in enumerate(federation.ids)}
        self.new = {name for name, new in zip(federation.ids, federation.is_new, strict=True) if new}
        self.folder, self.fault = folder, fault
        self.away: set[str] = set()
        self.log: list[tuple[str, str, bytes, bytes | Failure]] = []
        """Kind of the request, name, request and answer, in their order."""

    def connected(self) -> set[str]:
        return set(self.own) - self.away

    def ask(
        self, requests: Mapping[str, bytes], seconds: float, enough: Callable[[set[str]], bool] = lambda _: False
    ) -> Iterator[tuple[str, bytes | Failure]]:
        for name, request in requests.items():
            answer = self._ask(name, request)
            self.log.append((decode(request).kind, name, request, answer))
            yield name, answer

    def _ask(self, name: str, request: bytes) -> bytes | Failure:
        if name in self.away:
            return Failure("lost", "it is not connected")
        return self.fault(name, request, self.agent(name).answer)

    def agent(self, name: str) -> Agent:
        """Return a site process that has just started, so that all it knows is on its disk."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        policy = folder / "policy.toml"
        if not policy.exists():
            policy.write_text('mode = "accept-all"\n')
        return Agent(name, self.own[name], folder, name in self.new)

    def close(self) -> None:
        pass


def alone(federation: Federation, client: int) -> Federation:
    """Return the federation of one client, from its arrays."""
    arrays: list[Any] = []
    for split in ("train", "test", "validation"):
        if split in federation.splits:
            rows = federation.splits[split].row(client)
            y = federation.y[rows].numpy()
            arrays += [
                federation.x[rows].numpy(),
                np.array([federation.labels[k] for k in y]) if federation.labels else y,
            ]
    own = [federation.labels[k] for k in federation.classes.row(client)]
    name = federation.ids[client]
    choices = {"classes": {name: own}} if own else {"regression": True}
    return Federation.from_arrays({name: arrays}, tokens=not federation.x.is_floating_point(), **choices)


def ready(recipe: Recipe, transport: Transport, names: Any, began: Beginning | None = None, **patience: Any) -> Ready:
    """Wait for all replies, unless told otherwise."""
    return gather(Asking(recipe, Patience(**{"seconds": 5.0, "quorum": 1.0, **patience})), transport, names, began)


def deployed(recipe: Recipe, transport: Direct, out: Path | None = None, resume: bool = False, **patience: Any) -> Run:
    """Train with the sites of a transport."""
    made = ready(recipe, transport, list(transport.own), **patience)
    return Training(made.asking.recipe, made.prepared, out, resume=resume).play()


def simulated(recipe: Recipe, federation: Federation, out: Path | None = None) -> Run:
    """Train the same with the reference engine."""
    engine = replace(recipe.engine, kind="loop")
    run = replace(recipe.run, checkpoint_every=1)
    return Training(replace(recipe, engine=engine, run=run), federation, out).play()
