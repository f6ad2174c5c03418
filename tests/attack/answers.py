"""Campaign `answers`: a site that answers its server with malformed messages, from the beginning or when it joins.

Before the first round, the run may be refused with the name of the site. After that it has to go on without the site.
What the server records is short, printable and finite.
"""

import json
import logging
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

import reference as ref
from attack.campaign import Campaign, Escape
from coterie.clients.wire import Message, decode, encode
from coterie.core.tree import Tree
from coterie.errors import UserError
from coterie.methods.flix import FLIX
from coterie.models.logreg import LogReg
from coterie.run import Run
from coterie.training import Training
from sites.direct import Direct, ready
from sites.test_equality import recipe

METHODS = ("fedavg", "pflego", "fedpac", "fedamp", "scafflix", "l2gd")
KINDS = ("facts", "accepted", "measured", "reply", "scores", "finished")
VICTIM = "client-1"
LONGEST = 1_000
"""Maximum number of characters of what a site can make the server say or record."""
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 0.5, 10**12, 10**30, 10**400, 1e-308, -1e308, 1e308, math.inf, math.nan, "", "x", "\ud800",
    "\x1b[2J\n", "A" * 100_000, [], [[]], [0, [1]], [5], [1, 2.5], {}, {"a": 1},
)  # fmt: skip
TREES = ("tensors", "numbers", "letter", "more")
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "nan": lambda value: value * math.nan,
    "infinite": lambda value: value - math.inf,
    "float8": lambda value: value.to(torch.float8_e5m2),
    "half": lambda value: value.half(),
    "whole": lambda value: value.to(torch.uint16),
    "truth": lambda value: value > 0,
    "complex": lambda value: value.to(torch.complex64),
    "empty": lambda value: value.new_zeros(0),
    "row": lambda value: value[None],
    "flat": lambda value: value.reshape(-1),
    "twice": lambda value: torch.cat([value.reshape(-1)] * 2),
}
"""Changes of a tensor."""


class Plan(NamedTuple):
    """What a seed stands for."""

    method: str
    kind: str
    """Kind of the messages that are changed."""
    how: str
    """"head", "tree", "bytes" or "other"."""
    joins: bool
    """Whether the site comes after the first round."""


def plan(seed: int) -> Plan:
    """Return what a seed stands for. The rest of the attempt follows from a random generator with this seed."""
    rng = Random(f"plan {seed}")
    method, kind, joins = METHODS[seed % len(METHODS)], rng.choice(KINDS), rng.random() < 0.3
    joins = joins and kind != "measured"
    how = rng.choice(("head", "head", "head", "tree", "bytes", "other"))
    return Plan(method, "reply" if how == "tree" else kind, how, joins)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value in a head."""
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from _places(tree[key], (*path, key))


def _other_head(head: dict[str, Any], rng: Random) -> dict[str, Any]:
    """Replace, remove or add a value anywhere in a head."""
    head = json.loads(json.dumps(head))
    path = rng.choice([path for path in _places(head) if path != ("version",)])
    inner = head
    for key in path[:-1]:
        inner = inner[key]
    if rng.random() < 0.15:
        del inner[path[-1]]
    else:
        inner[path[-1]] = rng.choice(VALUES)
    return head


def _other_trees(trees: dict[str, Tree], rng: Random) -> dict[str, Tree]:
    label = rng.choice(TREES)
    tree = dict(trees.get(label, {}))
    name = rng.choice(sorted(tree)) if tree else ""
    what = rng.choice((*CHANGES, "extra", "missing", "all missing"))
    if what == "extra" or not tree:
        tree[rng.choice(("extra", "", "\x1b[2J" * 1000))] = torch.ones(rng.choice(((), (3,))))
    elif what == "all missing":
        tree = {}
    elif what == "missing":
        del tree[name]
    else:
        tree[name] = CHANGES[what](tree[name])
    return {**trees, label: tree}


def _packed(head: dict[str, Any], trees: dict[str, Tree]) -> bytes:
    """Return the bytes of a message whose head may be anything."""
    text, rest = json.dumps(head).encode(), encode("", {}, **trees)
    (size,) = struct.unpack_from("<Q", rest)
    return struct.pack("<Q", len(text)) + text + rest[8 + size :]


def changed(answer: bytes, how: str, rng: Random) -> bytes:
    """Return a malformed answer."""
    message: Message = decode(answer)
    if how == "head":
        return _packed(_other_head(message.head, rng), dict(message.trees))
    if how == "tree":
        return _packed(message.head, _other_trees(dict(message.trees), rng))
    if how == "other":
        kind = rng.choice((*KINDS, "failed", "refused", "kept", "personalized", "x" * 10_000))
        return _packed({"kind": kind, "version": 1, "why": rng.choice(VALUES)}, {})
    damaged = bytearray(answer[: rng.randrange(len(answer) + 1)] if rng.random() < 0.3 else answer)
    for _ in range(rng.randrange(4)):
        if damaged:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


@cache
def federation() -> Any:
    """Return the data of three sites."""
    return ref.federation((5, 3, 8), new=0)


def attempt(seed: int, folder: Path) -> str:
    """Play a run in which one site answers with malformed messages."""
    planned, rng = plan(seed), Random(seed)
    about = f"{planned.method}, {planned.kind}, {planned.how}{', joins' if planned.joins else ''}"

    def fault(name: str, request: bytes, answer: Callable[[bytes], bytes]) -> bytes:
        asked, answered = decode(request), answer(request)
        if planned.joins and asked.kind == "update" and asked.head["round"]["index"] == 2:
            transport.away = set()
        if name == VICTIM and decode(answered).kind == planned.kind and rng.random() < 0.7:
            return changed(answered, planned.how, rng)
        return answered

    transport = Direct(federation(), folder / "sites", fault)
    transport.away = {VICTIM} if planned.joins else set()
    settings = recipe(planned.method, rounds=3, eval_every=1, clients_per_round=None)
    if planned.kind == "measured":  # numbers are measured if theory sets a rate
        settings = replace(settings, model=LogReg(), method=FLIX(gamma="1/trace"))
    names = [name for name in transport.own if name not in transport.away]
    try:
        with patch.object(os, "fsync", lambda _: None):
            made = ready(settings, transport, names, quorum=0.5)
            run = Training(made.asking.recipe, made.prepared, folder / "run").play()
    except UserError as error:
        text = str(error)
        if planned.joins or planned.kind not in KINDS[:3] or VICTIM not in text:
            raise Escape(f"{about}: the whole run ends: {text[:200]}") from None
        _check_text(about, text)
        return f"{about}: refused before the first round"
    except Exception as error:
        raise Escape(f"{about}: {type(error).__name__}: {str(error)[:200]}") from error
    _check(about, run, folder)
    return f"{about}: {sum(VICTIM in record.refused for record in run.history)} replies refused"


def _check(about: str, run: Run, folder: Path) -> None:
    if len(run.history) != 3:
        raise Escape(f"{about}: only {len(run.history)} rounds")
    for record in run.history:
        if wrong := sorted(record.refused.keys() - {VICTIM}):
            raise Escape(f"{about}: an honest site is refused: {record.refused[wrong[0]]}")
        for why in record.refused.values():
            _check_text(about, why)
    for name in ("rounds.jsonl", "summary.json"):
        text = (folder / "run" / name).read_text()
        found: list[str] = []
        for each in text.splitlines() if name == "rounds.jsonl" else [text]:
            json.loads(each, parse_constant=found.append)
        if found:
            raise Escape(f"{about}: {name} has figures that are not finite: {found[0]}")
    for name in {"client-0", "client-2"}:
        if not list((folder / "sites" / name / "runs").glob("*/model.json")):
            raise Escape(f"{about}: {name} has got no model")


def _check_text(about: str, text: str) -> None:
    if len(text) > LONGEST or not text.isprintable():
        raise Escape(f"{about}: a text of {len(text)} characters is shown: {text[:100]!a}")


def prepare() -> int:
    """Keep warnings about the site from the screen."""
    logging.getLogger("coterie").addHandler(logging.NullHandler())
    return 1 << 31


CAMPAIGN = Campaign(
    "answers",
    "a real site answers its server with malformed messages: the site is refused by name, and a run that has begun "
    "goes on without it",
    attempt,
    prepare,
    3_000,
)
