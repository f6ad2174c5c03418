"""The rows and columns of a run's tables of statistics, with their headings."""

import math
from collections.abc import Iterator
from typing import NamedTuple

from coterie.measure.protocols import AS_IS, PROTOCOLS, Figures, New, Protocol, Statistics
from coterie.measure.summary import OWN, Summary
from coterie.report.units import known

PARTS = {
    "visited": "Only the clients that took part in at least one round.",
    "on training examples": "Tested on their own training examples instead of their test examples.",
    "never visited": "Only the clients that never took part in a round. Their personal state is the initial one.",
    "several classes": "Without the clients that have only one class. Among its own classes, such a client is always "
    "right.",
}
"""Rows that may follow the row of a protocol, with an explanation of each."""


class Line(NamedTuple):
    """A row of the table of statistics."""

    protocol: Protocol
    part: str
    """What the row is about, from `PARTS`, or an empty string for all clients of the protocol on test examples."""
    statistics: Statistics

    @property
    def title(self) -> str:
        """Short title of the row."""
        return self.part or self.protocol.title


def shown_lines(summary: Summary) -> Iterator[Line]:
    """Return a row for each protocol, followed by rows for those parts of its clients that the mean would hide.

    The score on training examples follows the row of the models as they are.
    """
    parts = {
        "visited": summary.visited and Figures(summary.visited, New()),
        "never visited": summary.never_visited and Figures(summary.never_visited, New()),
        "several classes": summary.several_classes,
    }
    for protocol in PROTOCOLS:
        everyone = summary[protocol.key]
        yield Line(protocol, "", everyone)
        if protocol is AS_IS and summary.train_score is not None:
            yield Line(protocol, "on training examples", summary.train_score)
        for name, figures in parts.items():
            found = figures[protocol.key] if figures else Statistics()
            if found.clients and found.clients != everyone.clients:
                yield Line(protocol, name, found)


def row_explanations(summary: Summary) -> dict[str, str]:
    """Return what the rows mean, by title."""
    shown = {line.part for line in shown_lines(summary)}
    parts = {part: explanation for part, explanation in PARTS.items() if part in shown}
    return {**{protocol.title: protocol.explanation for protocol in PROTOCOLS}, **parts}


def shown_statistics(summary: Summary) -> dict[str, str]:
    """Return the statistics to show, as name -> heading.

    `restricted_mean` is shown only if it differs from `mean`, and `last10_mean` only if there were several evaluations.
    """
    evaluations = summary.evaluations
    last = "last ten" if evaluations is None else f"last {evaluations}"
    return {
        "mean": "mean",
        **({"restricted_mean": "restricted"} if restricted_differs(summary) else {}),
        "weighted_mean": "weighted",
        "std": "std",
        "stderr": "stderr",
        "bottom_decile": "bottom decile",
        **({"last10_mean": last} if evaluations is None or evaluations > 1 else {}),
    }


def restricted_differs(figures: Figures) -> bool:
    """Return whether any mean changes when each client chooses only among its own classes."""
    for protocol in PROTOCOLS:
        found = figures[protocol.key]
        plain, restricted = known(found.mean), known(found.restricted_mean)
        if plain is not None and restricted is not None and not math.isclose(plain, restricted, abs_tol=1e-9):
            return True
    return False


def title(summary: Summary) -> str:
    """Return the title of the table, which says what clients choose among."""
    score = f"{summary.score[0].upper()}{summary.score[1:]} over clients, in percent."
    if not summary.choices:
        return score
    restricted = "; restricted: among its own classes only" if restricted_differs(summary) else ""
    return f"{score} A client chooses among {own(summary.choices)}{restricted}."


def own(choices: str) -> str:
    """Return what a client chooses among, as the end of a sentence about it."""
    return f"its {choices}" if choices == OWN else choices
