"""What a stopping rule chose, as in summary.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from coterie.measure.protocols import Figures, figures_in

FACTS = ("by", "patience", "improvement", "stopped", "round", "value")
"""Fields of `Chosen` besides the figures, in the order of summary.json."""


@dataclass(frozen=True, kw_only=True)
class Chosen(Figures):
    """The round that a stopping rule chose, with the figures of that round on test examples."""

    by: str
    """Figure that had to improve."""
    patience: int
    improvement: float
    stopped: bool
    """Whether the rule ended the run. Otherwise all rounds were played."""
    round: int | None
    """Round of the last improvement, or None if the figure was never measured."""
    value: float | None
    """Figure after that round."""

    def to_json(self, last10: bool = False) -> dict[str, Any]:
        """Return the choice as it is laid out in summary.json."""
        return {**{name: getattr(self, name) for name in FACTS}, **super().to_json(last10)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Read a choice."""
        return cls(**{name: tree[name] for name in FACTS}, **figures_in(tree))
