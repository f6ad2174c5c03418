"""The five protocols of a summary, and how each looks wherever it is shown."""

import math
from typing import Any, NamedTuple

from coterie.report.units import known

Record = dict[str, Any]


class Protocol(NamedTuple):
    group: str
    key: str
    label: str
    color: str
    """Told apart with every common form of colour blindness, on white and on near-black."""
    symbol: str

    def of(self, evaluation: Record) -> Record:
        """This protocol's statistics in a summary, or in a round's evaluation; empty where it was not measured."""
        return (evaluation.get(self.group) or {}).get(self.key) or {}


AS_IS = Protocol("existing", "as_is", "existing, as is", "#1e64f2", "circle")
ADAPTED = Protocol("existing", "adapted", "existing, adapted", "#c7790e", "square")
PARTICIPANTS = Protocol("existing", "participants", "participants", "#7e67b5", "x")
BEFORE = Protocol("new", "before", "new, before", "#c9174f", "triangle-down")
AFTER = Protocol("new", "after", "new, after", "#5aada7", "diamond")

ALL = (AS_IS, ADAPTED, PARTICIPANTS, BEFORE, AFTER)


def restricted_differs(summary: Record) -> bool:
    """Whether choosing among a client's own classes only changes any mean."""
    for protocol in ALL:
        figures = protocol.of(summary)
        plain, restricted = known(figures.get("mean")), known(figures.get("restricted_mean"))
        if plain is not None and restricted is not None and not math.isclose(plain, restricted, abs_tol=1e-9):
            return True
    return False


def statistics(summary: Record) -> dict[str, str]:
    """The statistics to show: key -> heading."""
    restricted = {"restricted_mean": "restricted"} if restricted_differs(summary) else {}
    return {
        "mean": "mean",
        "weighted_mean": "weighted",
        **restricted,
        "std": "std",
        "stderr": "stderr",
        "bottom_decile": "bottom decile",
        "last10_mean": "last ten",
    }
