"""A site's side of a run: it answers what the server asks, with its own data, its own state and its own consent.

    hello        what kind of data the site has, and how many examples
    measure      single numbers for a method whose hyper-parameters depend on all clients' data
    announce     a run: the site computes what it would send, and its policy accepts or refuses
    update       a local update: the reply leaves, the personal state stays here
    score        scores of the site's model, as it is and adapted; nothing changes
    keep         the last round counts; nothing else is asked
    finish       the end of the run, with the final shared model
    personalize  the final shared model, for a site that took no part: it adapts to the site's data

Each request of a run says after which round the server expects the site's state to be. A site that was killed therefore
continues where it was, a round that counts is kept, and a round that does not count is forgotten. The personal state is
on the disk before a reply leaves. Requests can be repeated: the answer is the same, and no step is taken twice.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from coterie.clients import work
from coterie.clients.engine import Call
from coterie.clients.loop import Loop
from coterie.clients.wire import BadMessageError, Message, decode, encode
from coterie.clients.workload import Workload
from coterie.core.answers import planned
from coterie.core.method import Calibrates, Exchanges, Receives, Round, Tree
from coterie.core.tree import digest, is_finite, num_bytes, unstack
from coterie.data.federation import Federation
from coterie.errors import ClientError, DiskError, UserError
from coterie.settings import length
from coterie.sites import policy as policies
from coterie.sites.accepted import Accepted, forms_of, read_run
from coterie.sites.model import RUNS, read_accepted, write_accepted, write_model
from coterie.sites.policy import Policy
from coterie.sites.sent import SentLog
from coterie.sites.state import SiteState
from coterie.sites.terms import LETTER, Terms
from coterie.storage.files import make_private

logger = logging.getLogger("coterie")
TIMES = 3
"""How many replies a site gives to each round, at most. A server that was killed may ask for a round again."""


class Declined(Exception):  # noqa: N818 - it is no error
    """The policy of the site refuses a run, or waits for the decision of a person."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why


class Agent:
    """The site process, apart from how requests reach it."""

    def __init__(self, name: str, own: Federation, state: Path, is_new: bool = False) -> None:
        """Take the site's own data, a federation of this one client.

        Args:
            name: name of the site, under which the server knows it.
            own: the data of the site.
            state: the site's folder of state.
            is_new: whether the site is held out of training, as a new user.
        """
        self.name = name
        self._own, self._state, self._is_new = own, state, is_new
        make_private(state)
        self.restored = False
        """Whether to continue with the site's own state although the server expects that after another round."""
        self.on_model: Callable[[], object] = lambda: None
        """Called when the site has got its final model."""
        self._sent = SentLog(state)
        self._engine = Loop()
        self._runs: dict[str, Accepted] = {}
        self._told: set[str] = set()
        """What the person at the site was told."""
        self._repeated: set[bytes] = set()
        """The last message, which is not logged again while it says the same about a run that is not accepted."""
        self._handlers: dict[str, Callable[[Message, str], bytes]] = {
            "hello": self._hello,
            "measure": self._measure,
            "announce": self._announce,
            "update": self._update,
            "score": self._score,
            "keep": self._keep,
            "finish": self._finish,
            "personalize": self._personalize,
        }

    @property
    def policy(self) -> Policy:
        """The policy, read again for each run, so that it can be changed at any time."""
        return policies.of_state(self._state)

    def answer(self, request: bytes) -> bytes:
        """Answer a request. What goes wrong is told to the server, and the site continues."""
        kind, run, index = "unknown", "", 0
        try:
            message = decode(request)
            kind, run = message.kind, str(message.head.get("run", ""))
            index = int(message.head.get("round", {}).get("index", 0)) if kind == "update" else 0
            if kind not in self._handlers:
                raise UserError(f"this version of Coterie does not know the request {kind!r}")
            reply = self._handlers[kind](message, hashlib.sha256(request).hexdigest())
        except Declined as declined:
            reply = encode(declined.kind, {"why": declined.why})
        except BadMessageError as error:
            reply = _failed(f"the request cannot be read: {error}")
        except (UserError, ClientError, DiskError, OSError, MemoryError) as error:
            logger.warning("%s: %s", kind, error)
            reply = _failed(str(error) or type(error).__name__)
        except Exception as error:
            logger.exception("%s failed", kind)
            reply = _failed(f"{kind} failed at the site: {type(error).__name__}")
        self._log(kind, run, index, reply)
        return reply

    def _tell(self, sentence: str) -> None:
        """Tell the person at the site something, once."""
        if sentence not in self._told:
            self._told.add(sentence)
            logger.info("%s", sentence)

    def _log(self, kind: str, run: str, index: int, reply: bytes) -> None:
        message = decode(reply)
        forms = [*forms_of(message.tree("tensors")), *forms_of(message.tree("letter"), LETTER)]
        names = sorted({*message.tree("numbers"), *message.head} - {"kind", "version", "to"})
        run_digest = self._runs[run].terms.digest() if run in self._runs else run
        if message.kind in ("waiting", "refused") and reply in self._repeated:
            return
        self._repeated = {reply}
        self._sent.append(message.kind if message.kind != "reply" else kind, run_digest, index, forms, names, reply)

    # -- before the first round

    def _hello(self, _: Message, __: str) -> bytes:
        own = self._own
        tokens = None if own.x.is_floating_point() else [int(own.x.min()), int(own.x.max())]
        facts: dict[str, Any] = {
            "coterie": version("coterie"),
            "splits": {split: int(own.sizes(split)[0]) for split in own.splits},
            "labels": list(own.labels) if own.labels else None,
            "inputs": {"shape": list(own.x.shape[1:]), "tokens": tokens},
            "is_new": self._is_new,
        }
        if own.y.is_floating_point():
            y = own.y[torch.from_numpy(own.splits["train"].row(0))].to(torch.float64)
            facts["targets"] = {"mean": float(y.mean()), "squares": float(((y - y.mean()) ** 2).sum())}
        return encode("facts", facts)

    def _measure(self, message: Message, _: str) -> bytes:
        accepted = read_run(message.head, self._own)
        self._consult(accepted.terms)
        method = accepted.work.method
        if not isinstance(method, Calibrates):
            raise UserError("the method asks clients for no numbers before the first round")
        with accepted.work.watching("measure"):
            numbers = method.measure(accepted.work.task, accepted.load.data(0, "train", 0))
        if more := accepted.terms.excess((), numbers):
            raise UserError(f"the reply would contain more than what the site agreed to: {more}")
        return encode("measured", {"numbers": numbers})

    def _announce(self, message: Message, _: str) -> bytes:
        head, accepted = message.head, read_run(message.head, self._own)
        self._consult(accepted.terms)
        if head["initial"] != digest(accepted.work.task.initial):
            raise UserError(
                "this site draws other initial weights than the server; install the same version of PyTorch"
            )
        kept = {
            key: head[key] for key in ("run", "announcement", "asked", "rounds", "scores", "coterie", "adapt_steps")
        }
        write_accepted(self._folder(accepted.id), kept)
        self._runs[accepted.id] = accepted
        terms = accepted.terms
        self._tell(f"this site takes part in the run {terms.digest()}: {terms.method}, {terms.rounds:,} rounds")
        return encode("accepted", {"digest": accepted.terms.digest()})

    def _consult(self, terms: Terms) -> None:
        """Raise Declined unless the policy of the site, as it is now, accepts a run."""
        verdict = policies.consult(self.policy, terms, self._state)
        if verdict.kind == "accepted":
            return
        if verdict.kind == "waiting":
            self._tell(
                f"{verdict.reason}. `coterie client requests --state {self._state}` shows what it would send, and "
                f"`coterie client accept {terms.digest()[:12]} --state {self._state}` accepts it"
            )
        else:
            self._tell(f"this site takes no part in a run of {terms.method}: {verdict.reason}")
        raise Declined(verdict.kind, verdict.reason)

    # -- rounds

    def _update(self, message: Message, request: str) -> bytes:
        head, run = message.head, self._accepted(message)
        state, rnd = self._state_of(run), _round(head["round"])
        pending = state.journal.pending
        if pending is not None and pending.request == request:
            return state.reply(pending)
        if rnd.index > run.terms.rounds or state.journal.replies >= TIMES * run.terms.rounds:
            raise UserError(
                f"the site agreed to {run.terms.rounds:,} rounds. It has sent {state.journal.replies:,} replies, and "
                f"this would be round {rnd.index:,}"
            )
        plan = planned(run.work.method, replace(rnd, steps=0))
        if rnd.seed != run.work.seed or rnd != plan or type(rnd.steps) is not type(plan.steps):
            raise UserError("the server asks for another number of local steps, or another seed, than it announced")
        shared, load = run.received(message.tree("shared")), run.load
        personal = self._personal(run, state, message, commit=True)
        told = {name: load.work.like.new_tensor(value) for name, value in head["told"].items()}
        update = Call(partial(work.told_update, rnd=rnd), shared, [0], ([personal], [told]), ("train",), rnd.index)
        tensors, numbers, mine, letter = self._one(load, update)
        if not is_finite(mine):
            raise UserError("the new personal state has NaN or infinite values")
        if any(value.numel() != 1 for value in numbers.values()):
            raise UserError("the reply would contain numbers that are no single numbers")
        if more := run.terms.excess([*forms_of(tensors), *forms_of(letter, LETTER)], numbers):
            raise UserError(f"the reply would contain more than what the site agreed to: {more}")
        counts = None
        if head["scored"] and run.terms.scores:
            (scored,) = self._one(load, Call(work.score_updated, shared, [0], ([tensors], [mine]), ("test",)))
            counts = _plain(scored)
        reply = encode("reply", {"scores": counts, "to": request}, tensors=tensors, numbers=numbers, letter=letter)
        state.store_update(rnd.index, head["round"], request, mine, reply)
        logger.info("round %d of %d: the reply has %s bytes", rnd.index, run.terms.rounds, f"{len(reply):,}")
        return reply

    def _score(self, message: Message, _: str) -> bytes:
        run = self._accepted(message)
        if not run.terms.scores:
            raise UserError("the run did not announce that it asks for scores")
        state, load = self._state_of(run), run.load
        personal = self._personal(run, state, message, commit=False)
        splits = ("train", *(split for split in ("test", "validation") if split in load.federation.splits))
        steps = partial(work.evaluate, steps=length(message.head["adapt"]))
        counts = self._one(load, Call(steps, run.received(message.tree("shared")), [0], ([personal],), splits))
        as_is, adapted = (dict(zip(splits, map(_plain, part), strict=True)) for part in (counts[::2], counts[1::2]))
        return encode("scores", {"as_is": as_is, "adapted": adapted, "stored_bytes": num_bytes(personal)})

    def _keep(self, message: Message, _: str) -> bytes:
        run = self._accepted(message)
        self._personal(run, self._state_of(run), message, commit=True)
        return encode("kept", {})

    def _finish(self, message: Message, _: str) -> bytes:
        run = self._accepted(message)
        personal = self._personal(run, self._state_of(run), message, commit=True)
        self._store_model(run, message, personal)
        return encode("finished", {})

    def _personalize(self, message: Message, _: str) -> bytes:
        run = self._accepted(message)
        shared, steps = run.received(message.tree("shared")), length(message.head["adapt"])
        state = self._state_of(run)
        adapt = Call(partial(work.adapt, steps=steps), shared, [0], ([state.kept()],), ("train",))
        (adapted,) = self._one(run.load, adapt)
        self._store_model(run, message, adapted)
        counts = {}
        if run.terms.scores:
            for when, personal in (("before", state.kept()), ("after", adapted)):
                (scored,) = self._one(run.load, Call(work.score, shared, [0], ([personal],), ("test",)))
                counts[when] = _plain(scored)
        return encode("personalized", counts)

    def _store_model(self, run: Accepted, message: Message, personal: Tree) -> None:
        index, folder = int(message.head["round"]), self._folder(run.id)
        write_model(folder, self.name, self._own.labels, index, message.tree("shared"), personal)
        self.on_model()

    # -- states

    def _personal(self, run: Accepted, state: SiteState, message: Message, *, commit: bool) -> Tree:
        """Return the personal state after the last round that the server counted. `commit` makes it the kept one."""
        journal, expected = state.journal, int(message.head["state"])
        pending = journal.pending
        if pending is not None and pending.round == expected:
            personal, rnd = state.update(pending), _round(pending.told)
            method, load = run.work.method, run.load
            if isinstance(method, Receives):
                after = message.tree("shared") if message.head["after"] == "shared" else message.tree("after")
                call = Call(partial(work.receive, rnd=rnd), run.received(after), [0], ([personal],))
                (personal,) = self._one(load, call)
            if isinstance(method, Exchanges):
                call = Call(partial(work.read, rnd=rnd), {}, [0], ([personal], [message.tree("letter")]))
                (personal,) = self._one(load, call)
            if commit:
                state.keep(personal)
            return personal
        if journal.round == expected:
            return state.kept()
        has = f"round {journal.round}" + (f" or {pending.round}" if pending else "")
        differs = f"the server expects the state of this site to be that after round {expected}, and it is after {has}"
        if not self.restored:
            raise UserError(
                f"{differs}. The folder of this site or that of the run is older than the other one. Restore a backup "
                "that fits. Otherwise, restart `coterie client` with --restored: it continues with the state it has"
            )
        self._tell(f"{differs}. This site continues with that after round {journal.round}, because of --restored")
        return state.kept()

    def _state_of(self, run: Accepted) -> SiteState:
        """Return the state of this site for a run. At first, it is created and prepares."""
        state = SiteState(self._folder(run.id) / "state")
        if not state.is_started:
            created = run.work.create(self.name, run.load.num_outputs(0))
            state.start(run.work.prepare(self.name, created, run.load.data(0, "train", 0)))
        return state

    def _accepted(self, message: Message) -> Accepted:
        """Return a run that this site has accepted, also before it was started again."""
        run = str(message.head["run"])
        if run not in self._runs:
            self._runs[run] = read_run(read_accepted(self._folder(run)), self._own)
        self._consult(self._runs[run].terms)  # a person may have changed their mind
        return self._runs[run]

    def _folder(self, run: str) -> Path:
        if not (run.isalnum() and run.isascii() and len(run) == 64):
            raise UserError(f"{run[:80]!r} is not the identity of a run")
        return self._state / RUNS / run

    def _one(self, load: Workload, call: Call) -> list[Tree]:
        (group,) = self._engine.each_client(load, call)
        return [unstack(tree, 1)[0] for tree in group.results]


def _round(tree: Mapping[str, Any]) -> Round:
    return Round(**{**tree, "steps": length(tree["steps"])})


def _plain(counts: Tree) -> dict[str, float]:
    return {name: value.item() for name, value in counts.items()}


def _failed(why: str) -> bytes:
    return encode("failed", {"why": why})
