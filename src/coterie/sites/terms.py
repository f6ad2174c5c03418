"""The terms of a run: what a site agrees to when it takes part.

A site computes them itself from what the server announced, and checks every message that leaves it against them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coterie.errors import UserError

LETTER = "letter:"
"""What the name of a tensor begins with if it travels in a letter, which the server does not add up with others."""


class Form(NamedTuple):
    """Name, shape and number type of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """Name of the type, such as float32."""

    def __str__(self) -> str:
        return f"{self.name} {'x'.join(map(str, self.shape)) or '1'} {self.dtype}"


@dataclass(frozen=True)
class Terms:
    """What a run asks of a site. It does not depend on the site, so all sites compute the same digest for a run."""

    announcement: str
    """sha256 of everything that the server announced, computed by the site: method, model, settings and seed."""
    method: str
    """Registered name of the method."""
    version: str
    """Version of Coterie that the server uses."""
    rounds: int
    tensors: tuple[Form, ...]
    """Tensors that each reply contains; names of those in letters begin with `letter:`."""
    numbers: tuple[str, ...] = ()
    """Names of the single numbers that are sent, such as the number of examples."""
    scores: bool = False
    """Whether the site is asked for scores of its model on its own examples."""
    privacy: Mapping[str, float] = field(default_factory=dict)
    """What the site does to a reply before it leaves: `norm`, to which it is clipped, and `noise` that is added.

    These are the settings that the site itself applies, not what a server claims. No version applies any yet.
    """

    def __post_init__(self) -> None:
        """Refuse texts that could hide from the person who decides what they are."""
        names = [name for name, *_ in self.tensors]
        for text in (self.announcement, self.method, self.version, *names, *self.numbers, *self.privacy):
            if not text.isprintable():
                raise UserError(f"the server announced {text[:200]!r}, which has characters that cannot be shown")

    def digest(self) -> str:
        """Return the sha256 of the terms, by which a person or a policy accepts a run."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the terms as plain values. The order of tensors and numbers does not matter."""
        return {
            "announcement": self.announcement,
            "method": self.method,
            "version": self.version,
            "rounds": self.rounds,
            "tensors": [[name, list(shape), dtype] for name, shape, dtype in sorted(self.tensors)],
            "numbers": sorted(self.numbers),
            "scores": self.scores,
            "privacy": {name: float(value) for name, value in self.privacy.items()},
        }

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Terms":
        """Read terms that `to_json` wrote."""
        tensors = tuple(Form(name, tuple(shape), dtype) for name, shape, dtype in tree["tensors"])
        return cls(**{**tree, "tensors": tensors, "numbers": tuple(tree["numbers"])})

    def excess(self, tensors: Iterable[Form], numbers: Iterable[str]) -> str | None:
        """Return what a reply contains beyond the terms, or None if all of it was agreed to."""
        agreed = set(self.tensors)
        for form in tensors:
            if form not in agreed:
                return f"the tensor {form}"
        more = sorted(set(numbers) - set(self.numbers))
        return f"the number {more[0]}" if more else None
