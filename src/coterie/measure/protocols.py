"""Evaluation protocols, and statistics over clients for each of them.

A protocol says which clients are evaluated and in which state their models are. The table `PROTOCOLS` defines all of
them; the rest of the package refers to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self


class Protocol(NamedTuple):
    """One evaluation protocol, as a row of the table."""

    group: str
    """Group of clients: "existing" or "new"."""
    name: str
    """Name within the group, as in summary.json."""
    adapts: bool
    """Whether clients adapt their models before they are evaluated."""
    title: str
    """Short title for tables and charts."""
    explanation: str
    """One sentence for readers of a page."""

    @property
    def key(self) -> str:
        """Group and name, such as `existing.as_is`."""
        return f"{self.group}.{self.name}"


AS_IS = Protocol(
    "existing",
    "as_is",
    False,
    "existing, as is",
    "Existing users with their personal state as last stored.",
)
ADAPTED = Protocol(
    "existing",
    "adapted",
    True,
    "existing, adapted",
    "Existing users after they adapt on their own training examples.",
)
PARTICIPANTS = Protocol(
    "existing",
    "participants",
    False,
    "participants",
    "The clients of a round's cohort, right after their local update and before aggregation.",
)
BEFORE = Protocol(
    "new",
    "before",
    False,
    "new, before",
    "New users, held out of training, before they adapt.",
)
AFTER = Protocol(
    "new",
    "after",
    True,
    "new, after",
    "New users, held out of training, after they adapt on their own training examples.",
)

PROTOCOLS = (AS_IS, ADAPTED, PARTICIPANTS, BEFORE, AFTER)
"""All protocols, in the order of tables."""
OF_ALL_CLIENTS = (AS_IS, ADAPTED, BEFORE, AFTER)
"""Protocols that evaluate all clients, on any split. Participants are evaluated on their test examples only."""
CHOOSES = {"as_is": AS_IS, "adapted": ADAPTED, "new_before": BEFORE, "new_after": AFTER}
"""Protocols whose validation score can choose between models, by the names they have in settings."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of a score over clients. All of them are None if no client was evaluated."""

    mean: float | None = None
    weighted_mean: float | None = None
    """Mean over clients, weighted by their numbers of examples."""
    std: float | None = None
    """Standard deviation of these clients, with divisor n."""
    stderr: float | None = None
    """Standard error of the mean: the sample standard deviation, with divisor n - 1, over sqrt(n). None for one client.
    """
    bottom_decile: float | None = None
    """Score of the client at position n // 10 in ascending order."""
    restricted_mean: float | None = None
    """Mean of the scores when each client chooses only among its own classes."""
    last10_mean: float | None = None
    """Mean of `mean` over the last evaluations, at most ten. Only a summary has it."""
    loss: float | None = None
    """Mean over clients of the loss on their examples, or None if it is not finite."""
    train_loss: float | None = None
    """Mean over clients of the loss on their training examples, or None if it is not finite or not known. With the
    model before adaptation this is F_IMS, equation 1 of the FedDecay paper; after adaptation it is F_RP, equation 2."""
    clients: int | None = None
    """Number of clients, n."""

    def to_json(self, last10: bool = False) -> dict[str, Any]:
        """Return the statistics by name. Set `last10` to include `last10_mean`."""
        names = [field.name for field in fields(self) if last10 or field.name != "last10_mean"]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any] | None) -> Self:
        """Read statistics by name. Missing ones are None and unknown ones are ignored."""
        return cls(**{field.name: (tree or {}).get(field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Existing:
    """Statistics over existing users, by protocol."""

    as_is: Statistics = Statistics()
    adapted: Statistics = Statistics()
    participants: Statistics | None = None
    """None on the validation split, where participants are not evaluated."""


@dataclass(frozen=True)
class New:
    """Statistics over new users, by protocol."""

    before: Statistics = Statistics()
    after: Statistics = Statistics()


@dataclass(frozen=True)
class Figures:
    """Statistics over existing and new users on one split. `figures["existing.as_is"]` finds them by protocol."""

    existing: Existing
    new: New

    def __getitem__(self, key: str) -> Statistics:
        """Return the statistics of the protocol with this key. They are empty if nothing was measured."""
        if key not in {protocol.key for protocol in PROTOCOLS}:
            raise KeyError(key)
        group, _, name = key.partition(".")
        found: Statistics | None = getattr(getattr(self, group), name)
        return found or Statistics()

    def to_json(self, last10: bool = False) -> dict[str, Any]:
        """Return the statistics by group and name, as in summary.json. Set `last10` to include `last10_mean`."""
        tree: dict[str, Any] = {"existing": {}, "new": {}}
        for group, name, *_ in PROTOCOLS:
            found: Statistics | None = getattr(getattr(self, group), name)
            if found is not None:
                tree[group][name] = found.to_json(last10)
        return tree

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read groups and protocols. Missing ones are empty and unknown ones are ignored."""
        return cls(**figures_in(tree))


def existing_in(tree: Mapping[str, Any]) -> Existing:
    """Read the statistics over existing users. Missing protocols are empty and unknown ones are ignored."""
    return Existing(**{name: Statistics.from_json(tree[name]) for name in _names("existing", tree)})


def figures_in(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments `existing` and `new` of `Figures`, read from JSON."""
    new = tree.get("new") or {}
    return {
        "existing": existing_in(tree.get("existing") or {}),
        "new": New(**{name: Statistics.from_json(new[name]) for name in _names("new", new)}),
    }


def _names(group: str, tree: Mapping[str, Any]) -> list[str]:
    return [protocol.name for protocol in PROTOCOLS if protocol.group == group and protocol.name in tree]
