"""Real sites: each has its own data and its own state, and is reached through a transport.

The server knows of a site what the site says: how many examples it has, its labels, the shape of its inputs. In a round
it sends the shared model and gets a reply. What a site keeps for itself never comes here.

That a round counts is told to a site with the next thing it is asked, because every message has a price. Until then it
is owed: the shared model after the round, for methods that `Receive`, and the letter, for those that `Exchange`.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.aggregate.rule import Rule
from coterie.clients.clients import Clients, Replies, Scored
from coterie.clients.engine import Cohort, Group, Results
from coterie.clients.transport import Failure, Transport
from coterie.clients.wire import BadMessageError, Message, decode, encode, shown
from coterie.clients.work import Work
from coterie.core.answers import weights_of
from coterie.core.data import Index
from coterie.core.method import Receives, Round, Tree
from coterie.core.tree import stack
from coterie.data.ragged import Ragged
from coterie.errors import StoppedError, UserError
from coterie.measure.cost import Cost, local_work
from coterie.settings import Epochs
from coterie.storage.checkpoint import load_checkpoint, save_checkpoint
from coterie.storage.store import PersonalStore

logger = logging.getLogger("coterie")
SITES = "sites"
"""Name of the tree, in a checkpoint, of what is known about sites and owed to them."""
_LARGEST = 1e30
"""Largest number that a site can say about its scores, so that means and deviations of all sites are finite."""


@dataclass(frozen=True)
class Facts:
    """What a site says about itself before the first round."""

    splits: Mapping[str, int]
    """Number of examples by split."""
    labels: tuple[Any, ...] | None
    """Its labels, sorted; None if it predicts numbers."""
    is_new: bool = False


@dataclass
class Owed:
    """What a site has not been told yet about the last round in which it took part."""

    round: int
    after: Tree
    """The shared model after that round, if the method `Receives` it."""
    letter: Tree


@dataclass(frozen=True)
class Patience:
    """How long the server waits for sites."""

    seconds: float = 600.0
    """Time for the replies of a round."""
    quorum: float = 0.5
    """Share of the cohort that has to reply, so that the round counts."""
    attempts: int = 3
    """Number of times that a round is asked for."""
    minimum: int = 1
    """Number of sites that have to be connected when a round begins."""


class Sites(Clients):
    """Sites that are reached through a transport."""

    def __init__(
        self,
        facts: Mapping[str, Facts],
        classes: Sequence[Any],
        work: Work,
        rule: Rule,
        transport: Transport,
        patience: Patience,
        run: Callable[[], str],
        scores: bool = True,
    ) -> None:
        """Take what sites have said about themselves.

        Args:
            facts: by name of the site.
            classes: names of all classes.
            work: the work of a client.
            rule: how replies become one update.
            transport: the way to the sites.
            patience: how long to wait.
            run: returns the identity of the run, which is known once its folder is.
            scores: whether sites are asked for scores.
        """
        self.ids: list[str] = []
        self.is_new = np.zeros(0, np.bool_)
        self.splits = ["test", *(["validation"] if any("validation" in each.splits for each in facts.values()) else [])]
        self.engine_name, self.reason = "sites", f"{len(facts)} sites with data of their own"
        self.work, self.facts = work, dict[str, Facts]()
        self._names_of_classes = list(classes)
        self._joined: dict[str, Facts] = {}
        """Sites that came later."""
        self._rule, self._transport, self._patience, self._run = rule, transport, patience, run
        self._scores = scores
        self._counted: dict[int, int] = {}
        """For each site, the last round that counts and in which it took part."""
        self._owed: dict[int, Owed] = {}
        self._latest = 0
        """The last round that counts."""
        self._answered: list[int] = []
        """The sites whose replies it contains."""
        self._digests: dict[int, str] = {}
        """sha256 of the last reply of each site."""
        self._store = PersonalStore(lambda _: {}, len(facts), torch.device("cpu"))
        for name, each in facts.items():
            self._add(name, each)

    def add(self, name: str, facts: Facts) -> None:
        """Add a site that has come later. Its number is the next one."""
        self._joined[name] = facts
        self._add(name, facts)

    def _add(self, name: str, facts: Facts) -> None:
        self._counted[len(self.ids)] = 0
        self.ids.append(name)
        self.facts[name] = facts
        self.is_new = np.append(self.is_new, facts.is_new)
        self.classes = Ragged.of([_places(self.facts[each].labels, self._names_of_classes) for each in self.ids])

    def sizes(self, split: str = "train") -> Index:
        return np.array([self.facts[name].splits.get(split, 0) for name in self.ids])

    def fingerprint(self) -> str:
        told = {name: asdict(each) for name, each in self.facts.items() if name not in self._joined}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def personal(self, client: int) -> Tree:
        raise UserError(
            f"the personal state of {self.ids[client]!r} is at the site and nowhere else; "
            "use coterie.load on the site's own folder of state, at the site"
        )

    def update(self, shared: Tree, cohort: Sequence[int], weights: Tensor, rnd: Round, scored: bool) -> Replies:
        told = [{}] * len(cohort) if rnd.chance is None else [{"chance": each} for each in rnd.chance.tolist()]
        requests = {}
        for client, own in zip(cohort, told, strict=True):
            head = {"round": _round(rnd), "told": own, "scored": scored and self._scores}
            requests[client] = self._request("update", client, head, shared)
        others = [client for client in self._owed if client not in requests]
        replies, refused = self._ask_cohort(requests, others)
        asked = Cohort(shared, cohort, [{} for _ in cohort], weights, rnd, scored)
        results = self._added_up(asked, replies, refused)
        if len(results.replies) and len(asked.clients) * self._patience.quorum > (number := len(cohort) - len(refused)):
            client, why = next(iter(refused.items()))
            raise StoppedError(
                f"round {rnd.index}: only {number} of {len(cohort)} replies can be used, fewer than the quorum; "
                f"{self.ids[client]}: {why}. The run stops here, and can be resumed"
            )
        agreed = results.agreed()
        self._answered = list(agreed.personal) if agreed else []
        outputs, sizes = self.classes.lengths().tolist(), self.sizes().tolist()
        each = [(sizes[client], self.work.num_outputs(outputs[client])) for client in self._answered]
        cost = local_work(self.work.method, self.work.probe, each, rnd.common)
        return Replies(
            agreed.total.result() if agreed else None,
            self._answered,
            agreed.letters if agreed else {},
            dict(sorted(refused.items())),
            results.scores,
            cost + Cost(bytes_up=results.bytes_up),
            digests={client: self._digests[client] for client in self._answered},
        )

    def _added_up(self, asked: Cohort, replies: Mapping[int, Message], refused: dict[int, str]) -> Results:
        """Check replies and add them up, as if the round had begun without the sites whose replies cannot be used."""
        while True:
            places = [place for place, client in enumerate(asked.clients) if client not in refused]
            if not places:
                return Results()
            if len(places) < len(asked.clients):
                asked = asked.part(places)
                sizes = torch.as_tensor(self.sizes()[list(asked.clients)], dtype=torch.float64)
                asked = asked._replace(weights=weights_of(self.work.method, sizes, asked.rnd))
            results = Results()
            for place, client in enumerate(asked.clients):
                message = replies[client]
                trees = (message.tree("tensors"), message.tree("numbers"), dict[str, Tensor](), message.tree("letter"))
                group = Group([place], tuple(stack([tree]) for tree in trees))
                accepted = results.receive(group, asked, self._rule, self.work.letter)
                if accepted.places and (counts := counts_in(message.head, "scores")):
                    results.scores[client] = counts
            results.agreed()
            if not results.refused:
                return results
            refused |= {client: shown(why) for client, why in results.refused.items()}

    def keep(self, shared: Tree, letters: Mapping[int, Tree], rnd: Round) -> None:
        after = shared if isinstance(self.work.method, Receives) else {}
        self._latest = rnd.index
        for client in self._answered:
            self._counted[client] = rnd.index
            self._owed[client] = Owed(rnd.index, after, letters.get(client, {}))

    def score(self, shared: Tree, who: Sequence[int], adapt_steps: int) -> Scored:
        head = {"adapt": _steps(adapt_steps)}
        there = self._transport.connected() if self._scores else set()
        asked = {client: self._request("score", client, head, shared) for client in who if self.ids[client] in there}
        replies, reasons = self._ask(asked, "scores")
        for client, why in reasons.items():
            logger.warning("%s has no scores: %s", self.ids[client], why)
        splits = ("train", *self.splits)
        scored = Scored({split: {} for split in splits}, {split: {} for split in splits}, {})
        for client, message in sorted(replies.items()):
            for split in splits:
                before, after = (counts_in(message.head.get(part), split) for part in ("as_is", "adapted"))
                if before and after:
                    scored.as_is[split][client], scored.adapted[split][client] = before, after
            stored = message.head.get("stored_bytes")
            scored.stored_bytes[client] = stored if type(stored) is int and 0 <= stored <= _LARGEST else 0
        self.on_scored(len(who))
        return scored

    def end(self, shared: Tree, index: int) -> None:
        clients = range(len(self.ids))
        requests = {client: self._request("finish", client, {"round": index}, shared) for client in clients}
        done, missing = self._ask(requests, "finished")
        self._settle(done)
        for client, why in missing.items():
            logger.warning(
                "%s did not get the final model: %s. To send it later, resume the run while the site is connected",
                self.ids[client],
                why,
            )

    def save(self, folder: Path, index: int, trees: Mapping[str, Tree], run: str) -> None:
        text = {
            "joined": {name: asdict(facts) for name, facts in self._joined.items()},
            "latest": self._latest,
            "counted": self._counted,
            "owed": {client: owed.round for client, owed in self._owed.items()},
        }
        known = {"json": torch.frombuffer(bytearray(json.dumps(text).encode()), dtype=torch.uint8)}
        old = [owed for owed in self._owed.values() if owed.after and owed.round != self._latest]
        after = {f"after-{owed.round}": owed.after for owed in old}
        letters = {f"letter-{client}": owed.letter for client, owed in self._owed.items() if owed.letter}
        save_checkpoint(folder, index, {**trees, SITES: known, **after, **letters}, self._store, run)

    def restore(self, folder: Path, run: str) -> tuple[int, dict[str, Tree]]:
        index, trees = load_checkpoint(folder, self._store, run)
        if (known := trees.pop(SITES, None)) is not None:
            text = json.loads(bytes(known["json"].tolist()))
            self._counted = {int(client): number for client, number in text["counted"].items()}
            for name, told in text["joined"].items():
                labels = None if told["labels"] is None else tuple(told["labels"])
                self.add(name, Facts(told["splits"], labels, told["is_new"]))
            self._latest = text["latest"]
            latest = {f"after-{self._latest}": trees["shared"] if isinstance(self.work.method, Receives) else {}}
            self._owed = {
                int(client): Owed(
                    number, {**trees, **latest}.get(f"after-{number}", {}), trees.get(f"letter-{client}", {})
                )
                for client, number in text["owed"].items()
            }
        return index, {name: tree for name, tree in trees.items() if not name.startswith(("after-", "letter-"))}

    # -- messages

    def _request(self, kind: str, client: int, head: Mapping[str, Any], shared: Tree) -> bytes:
        """Return a request, with what the site is owed."""
        trees, after = {"shared": shared} if shared else {}, ""
        if owed := self._owed.get(client):
            if owed.after:
                after = "shared" if shared and owed.round == self._latest else "after"
                trees |= {"after": owed.after} if after == "after" else {}
            trees |= {"letter": owed.letter} if owed.letter else {}
        state = {"run": self._run(), "state": self._counted[client], "after": after}
        return encode(kind, {**head, **state}, **trees)

    def _ask_cohort(
        self, requests: Mapping[int, bytes], others: Iterable[int]
    ) -> tuple[dict[int, Message], dict[int, str]]:
        """Ask a cohort until there is a quorum. Tell sites that are not part of it what they are owed."""
        also = {client: self._request("keep", client, {}, {}) for client in others}
        replies: dict[int, Message] = {}
        needed, reasons = self._patience.quorum * len(requests), dict[int, str]()
        for _ in range(self._patience.attempts):
            missing = {client: request for client, request in requests.items() if client not in replies}
            found, reasons = self._ask(missing | also, "reply", cohort=set(missing))
            self._settle(found)
            replies |= {client: message for client, message in found.items() if client in requests}
            reasons = {client: why for client, why in reasons.items() if client in requests}
            if replies and len(replies) >= needed:
                return replies, reasons
            also = {}
        client, why = next(iter(reasons.items()))
        raise StoppedError(
            f"only {len(replies)} of {len(requests)} sites of the cohort replied, although they were asked "
            f"{self._patience.attempts} times; {self.ids[client]}: {why}. The run stops here, and can be resumed"
        )

    def _settle(self, told: Iterable[int]) -> None:
        """Forget what these sites were owed. They have stored it before they answered."""
        for client in told:
            self._owed.pop(client, None)

    def _ask(
        self, requests: Mapping[int, bytes], kind: str, cohort: set[int] | None = None
    ) -> tuple[dict[int, Message], dict[int, str]]:
        """Send requests. Returns the replies of this kind, and why there is none from the others."""
        places = {name: client for client, name in enumerate(self.ids)}
        by_name = {self.ids[client]: request for client, request in requests.items()}
        names = {self.ids[client] for client in (requests if cohort is None else cohort)}
        replies: dict[int, Message] = {}
        reasons: dict[int, str] = {}
        for name, answer in self._transport.ask(by_name, self._patience.seconds, lambda known: known >= names):
            client = places[name]
            if isinstance(answer, Failure):
                reasons[client] = answer.reason
                continue
            try:
                message = decode(answer)
            except BadMessageError as error:
                reasons[client] = f"its reply cannot be read: {error}"
                continue
            if message.kind == "reply" and message.head.get("to") != hashlib.sha256(requests[client]).hexdigest():
                reasons[client] = "it sent a reply to another request, of an older round or another run"
            elif message.kind in (kind, "kept"):
                replies[client], self._digests[client] = message, hashlib.sha256(answer).hexdigest()
            else:
                why = message.head.get("why") or f"it answered {message.kind!r} instead of {kind!r}"
                reasons[client] = shown(why)
        return replies, reasons


def _round(rnd: Round) -> dict[str, Any]:
    """Return what all clients are told about a round, as plain values."""
    return {**asdict(rnd.common), "steps": _steps(rnd.steps), "cohort_size": float(rnd.cohort_size)}


def counts_in(head: Any, name: str) -> dict[str, float] | None:
    """Return counts that a site has sent, or None if they are missing or cannot be counts."""
    counts = head.get(name) if isinstance(head, dict) else None
    names = {"examples", "right", "restricted", "loss"}
    if not isinstance(counts, dict) or counts.keys() != names:
        return None
    fits = all(type(count) in (int, float) and -_LARGEST <= count <= _LARGEST for count in counts.values())
    return counts if fits and counts["examples"] >= 0 and counts["examples"] % 1 == 0 else None


def _steps(steps: int) -> int | str:
    return f"{int(steps)} epochs" if isinstance(steps, Epochs) else int(steps)


def _places(labels: tuple[Any, ...] | None, classes: Sequence[Any]) -> Index:
    return np.array([list(classes).index(label) for label in labels or ()], dtype=np.int64)
