"""Campaign `messages`: clients that send malformed replies, on every engine.

The reply of a victim must be refused, and the log must name the client and what is wrong. The round must end as if the
victim had sent zeros and kept its state. A method that changes the shared model in place must end with an error.
"""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import coterie
from attack.campaign import Campaign, Escape
from coterie import streams
from coterie.core.data import Data
from coterie.core.method import Method, Reply, Round, Task, Tree, settings
from coterie.errors import ClientError, DivergedError, UserError
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedper import FedPer
from coterie.methods.pflego import PFLEGO

SMALL, LARGE = 4, 9
"""Numbers of examples of clients. Engines compute the small clients together, and the large ones."""
SIZES = (SMALL, LARGE, SMALL, SMALL, LARGE, SMALL)
RAY = 1_000
"""One of so many attempts is on a Ray cluster, which takes seconds to start."""
Change = Callable[[Reply, Data, Tree, Random], tuple[Reply, str]]
"""Function of a reply, the client's data, the shared model and a source of choices: (changed reply, name at fault)."""


def _tensor(change: Callable[[Tensor, Random], Any]) -> Change:
    """Return a change of one tensor of a reply."""

    def changed(reply: Reply, data: Data, shared: Tree, rng: Random) -> tuple[Reply, str]:
        name = rng.choice(sorted(reply.tensors))
        return reply._replace(tensors={**reply.tensors, name: change(reply.tensors[name], rng)}), name

    return changed


def _number(change: Callable[[Tensor, Data], Any]) -> Change:
    """Return a change of the number `loss`."""

    def changed(reply: Reply, data: Data, shared: Tree, rng: Random) -> tuple[Reply, str]:
        return reply._replace(numbers={**reply.numbers, "loss": change(reply.numbers["loss"], data)}), "loss"

    return changed


def _more(name: str, value: Callable[[Reply, Data], Tensor]) -> Change:
    """Return a change that adds a tensor."""

    def changed(reply: Reply, data: Data, shared: Tree, rng: Random) -> tuple[Reply, str]:
        return reply._replace(tensors={**reply.tensors, name: value(reply, data)}), name

    return changed


def _renamed(reply: Reply, data: Data, shared: Tree, rng: Random) -> tuple[Reply, str]:
    name = rng.choice(sorted(reply.tensors))
    new = rng.choice((f"{name}.", "x", name.upper(), "", "\u00e4"))
    return reply._replace(tensors={new if key == name else key: value for key, value in reply.tensors.items()}), name


def _missing(reply: Reply, data: Data, shared: Tree, rng: Random) -> tuple[Reply, str]:
    name = rng.choice(sorted(reply.tensors))
    return reply._replace(tensors={key: value for key, value in reply.tensors.items() if key != name}), name


def _empty(reply: Reply, data: Data, shared: Tree, rng: Random) -> tuple[Reply, str]:
    return reply._replace(tensors={}), min(reply.tensors)


def _head(reply: Reply, data: Data, shared: Tree, rng: Random) -> tuple[Reply, str]:
    name = min(reply.personal)
    return reply._replace(tensors={**reply.tensors, name: reply.personal[name]}), name


def _some(value: Tensor, bad: float) -> Tensor:
    """Return a tensor with one bad element."""
    return torch.where(torch.arange(value.numel()).reshape(value.shape) == 0, bad, value)


STRUCTURE: dict[str, Change] = {
    "wrong name": _renamed,
    "missing tensor": _missing,
    "empty": _empty,
    "extra tensor": _more("extra", lambda reply, data: torch.ones(())),
    "training data": _more("x", lambda reply, data: data.x.clone()),
    "labels": _more("y", lambda reply, data: data.y.clone()),
    "head": _head,
    "flat": _tensor(lambda value, rng: value.reshape(-1) if value.ndim > 1 else value.reshape(1, -1)),
    "longer": _tensor(lambda value, rng: torch.cat([value, value[:1]])),
    "leading one": _tensor(lambda value, rng: value[None]),
    "scalar": _tensor(lambda value, rng: value.sum()),
    "one element": _tensor(lambda value, rng: value.sum().reshape(1)),
    "float64": _tensor(lambda value, rng: value.double()),
    "float16": _tensor(lambda value, rng: value.half()),
    "bfloat16": _tensor(lambda value, rng: value.bfloat16()),
    "int64": _tensor(lambda value, rng: (100 * value).long()),
    "bool": _tensor(lambda value, rng: value > 0),
    "complex": _tensor(lambda value, rng: value.to(torch.complex64)),
    "number with two elements": _number(lambda value, data: torch.stack([value, value])),
    "number with one element": _number(lambda value, data: value[None]),
    "number is data": _number(lambda value, data: data.x.clone()),
}
"""Changes of the form of a reply. Engines that compute clients together make them for a whole group."""
VALUES: dict[str, Change] = {
    "nan": _tensor(lambda value, rng: _some(value, float("nan"))),
    "infinity": _tensor(lambda value, rng: _some(value, float("-inf"))),
    "nan as a number": _number(lambda value, data: value * float("nan")),
}
"""Changes of values, which can be made for a single client everywhere."""
MUTATIONS = ("add in place", "fill in place", "copy in place")
FUSED = {
    "nan": ("features", lambda value: value * float("nan")),
    "number with two elements": ("loss", lambda value: torch.stack([value, value])),
    "number with one element": ("loss", lambda value: value[None]),
    "nan as a number": ("loss", lambda value: value * float("nan")),
    "narrow features": ("features", lambda value: value[..., :1]),
    "features in float64": ("features", lambda value: value.double()),
    "infinity in the head": ("head", lambda value: value + float("inf")),
}
"""Changes of what a method returns to the engine `fused`."""


def _is_victim(data: Data, victims: str) -> bool | Tensor:
    """Return whether a client is a victim. Clients have their number in the first column of their examples."""
    return data.x.shape[0] > SMALL if victims == "large" else data.x[0, 0] == float(victims)


def _chosen(where: bool | Tensor, bad: Tree, good: Tree) -> Tree:
    """Return the bad tree for victims, and the good tree for all others."""
    if isinstance(where, bool) or not torch._C._functorch.is_batchedtensor(where):
        return bad if where else good
    return {name: torch.where(where, value, good[name]) for name, value in bad.items()}


def _changed(reply: Reply, before: Tree, data: Data, shared: Tree, kind: str, victims: str, seed: int) -> Reply:
    where = _is_victim(data, victims)
    if where is False:
        return reply
    if kind in MUTATIONS:
        _mutate(shared, kind, seed)
        return reply
    if kind == "zero":
        zeros = ({name: torch.zeros_like(value) for name, value in part.items()} for part in reply[:2])
        bad = Reply(*zeros, before)
    else:
        bad, _ = {**STRUCTURE, **VALUES}[kind](reply, data, shared, Random(seed))
    return Reply(*(_chosen(where, one, other) for one, other in zip(bad, reply, strict=True)))


def _mutate(shared: Tree, kind: str, seed: int) -> None:
    value = shared[Random(seed).choice(sorted(shared))]
    with torch.no_grad():
        match kind:
            case "add in place":
                value.add_(1.0)
            case "fill in place":
                value.fill_(0.5)
            case _:
                value.copy_(torch.ones_like(value))


@settings
class BadFedAvg(FedAvg):
    """FedAvg with some clients that send malformed replies in round 1."""

    kind: str = ""
    victims: str = ""
    choice: int = 0

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        reply = super().local_update(task, shared, personal, data, rnd)
        if rnd.index > 1 or not self.kind:
            return reply
        return _changed(reply, personal, data, shared, self.kind, self.victims, self.choice)


@settings
class BadFedPer(FedPer):
    """FedPer with some clients that send malformed replies in round 1."""

    kind: str = ""
    victims: str = ""
    choice: int = 0

    def local_update(self, task: Task, shared: Tree, personal: Tree, data: Data, rnd: Round) -> Reply:
        reply = super().local_update(task, shared, personal, data, rnd)
        if rnd.index > 1 or not self.kind:
            return reply
        return _changed(reply, personal, data, shared, self.kind, self.victims, self.choice)


@settings
class BadPFLEGO(PFLEGO):
    """PFLEGO with some clients that compute malformed results in round 1."""

    kind: str = ""
    victims: str = ""
    choice: int = 0

    def on_features(
        self, task: Task, personal: Tree, features: Tensor, data: Data, rnd: Round
    ) -> tuple[Tensor, Tree, Tree]:
        g, numbers, head = super().on_features(task, personal, features, data, rnd)
        where: bool | Tensor = len(data.y) > SMALL
        if self.victims and self.victims != "large":  # inputs have passed the body: a client is known by its stream
            where = data.stream == streams.key(rnd.seed, "batches", rnd.index, f"client-{self.victims}")
        if rnd.index > 1 or not self.kind or where is False:
            return g, numbers, head
        if self.kind == "zero":
            bad = {name: torch.zeros_like(value) for name, value in numbers.items()}
            old = {name: personal[name] for name in head}
            (zero,) = _chosen(where, {"": torch.zeros_like(g)}, {"": g}).values()
            return zero, _chosen(where, bad, numbers), _chosen(where, old, head)
        part, change = FUSED[self.kind]
        if part == "features":
            (g,) = _chosen(where, {"": change(g)}, {"": g}).values()
        elif part == "loss":
            numbers = {**numbers, **_chosen(where, {"loss": change(numbers["loss"])}, {"loss": numbers["loss"]})}
        else:
            head = _chosen(where, {name: change(value) for name, value in head.items()}, head)
        return g, numbers, head


METHODS: dict[str, tuple[type[Method], dict[str, Any]]] = {
    "fedavg": (BadFedAvg, {"tau": 2, "eta": 0.1}),
    "fedper": (BadFedPer, {"tau": 2, "beta": 0.1}),
    "pflego": (BadPFLEGO, {"tau": 2, "server": "sgd"}),
}


@cache
def federation() -> coterie.Federation:
    """Return clients of two sizes. The first column of a client's examples is its number."""
    rng = np.random.default_rng(0)
    arrays = {}
    for number, size in enumerate(SIZES):
        x = rng.normal(size=(size, 4)).astype(np.float32)
        x[:, 0] = number
        arrays[f"client-{number}"] = (x, np.arange(size) % 2, x[:2], [0, 1])
    return coterie.Federation.from_arrays(arrays)


def train(name: str, engine: str, kind: str, victims: str, choice: int) -> coterie.Run:
    """Train two rounds with all clients."""
    cls, own = METHODS[name]
    return coterie.train(
        federation(),
        model="mlp",
        method=cls(**own, kind=kind, victims=victims, choice=choice),
        rounds=2,
        eval_every=2,
        adapt_steps=1,
        engine=engine,
        progress=False,
        settings={"model": {"hidden": [3]}, "engine": {"threads": 1}},
    )


@cache
def expected(name: str, engine: str, victims: str) -> coterie.Run:
    """Return the run in which victims send zeros and keep their state."""
    return train(name, engine, "zero", victims, 0)


def prepare() -> int:
    """Train once on every engine. There is no end of attempts."""
    for name, engine in (("fedavg", "loop"), ("fedavg", "vmap"), ("fedper", "vmap"), ("pflego", "fused")):
        expected(name, engine, "large")
    return 1 << 31


class Plan(NamedTuple):
    """A run with malformed replies."""

    name: str
    engine: str
    kind: str
    victims: str


def plan(seed: int) -> Plan:
    """Return the run of an attempt."""
    rng = Random(seed)
    engine = "ray" if seed % RAY == RAY - 1 else ("loop", "vmap", "fused")[seed % 3]
    name = "pflego" if engine == "fused" else rng.choice(("fedavg", "fedper"))
    kinds = [*FUSED] if engine == "fused" else [*STRUCTURE, *VALUES, *MUTATIONS]
    kind = rng.choice([kind for kind in kinds if kind != "head" or name == "fedper"])
    if engine == "ray":
        kind = rng.choice([*[*STRUCTURE][:3], *VALUES])
    single = engine == "loop" or kind.startswith(("nan", "infinity"))
    return Plan(name, engine, kind, str(rng.randrange(len(SIZES))) if single and rng.random() < 0.7 else "large")


def attempt(seed: int, folder: Path) -> str:
    """Let some clients send malformed replies, and see what becomes of the round."""
    name, engine, kind, victims = plan(seed)
    about = f"{name} on {engine}, {kind}, victims {victims}"
    told = _Told()
    logger = logging.getLogger("coterie")
    logger.addHandler(told)
    try:
        run = train(name, engine, kind, victims, seed)
    except (UserError, ClientError, DivergedError) as error:
        if kind in MUTATIONS:
            return f"{about}: {type(error).__name__}"
        raise Escape(f"{about}: the whole run ends: {type(error).__name__}: {error}") from None
    except Exception as error:
        raise Escape(f"{about}: {type(error).__name__}: {error}") from None
    finally:
        logger.removeHandler(told)
    if kind in MUTATIONS:
        raise Escape(f"{about}: the shared model was changed in place, and nobody noticed")
    _check(about, run, expected(name, engine, victims), victims, told.text)
    return f"{about}: refused"


def _check(about: str, run: coterie.Run, other: coterie.Run, victims: str, told: str) -> None:
    bad = [f"client-{i}" for i, size in enumerate(SIZES) if victims == str(i) or (victims == "large" and size == LARGE)]
    refused = sorted(run.history[0].refused)
    if refused != bad:
        raise Escape(f"{about}: refused are {refused}, not {bad}")
    if run.history[1].refused:
        raise Escape(f"{about}: honest replies are refused: {run.history[1].refused}")
    pairs = [("shared", run.shared, other.shared)]
    pairs += [(f"personal of {name}", run.personal(name), other.personal(name)) for name in run.ids]
    for what, one, two in pairs:
        if one.keys() != two.keys() or not all(torch.allclose(one[key], two[key], atol=1e-6) for key in one):
            raise Escape(f"{about}: {what} differs from that of a round without these replies")
    if not any(name in told for name in bad):
        raise Escape(f"{about}: the log does not name {' or '.join(bad)}: {told[-200:]}")


class _Told(logging.Handler):
    """Collects warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage() + "\n"


CAMPAIGN = Campaign(
    "messages",
    "clients send malformed replies: these are refused by name, nothing is broadcast, and the round ends as if they "
    "had not been sent",
    attempt,
    prepare,
    6_000,
)
