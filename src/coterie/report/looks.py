"""Colours and marker symbols of all pages."""

from typing import NamedTuple

from coterie.measure.protocols import ADAPTED, AFTER, AS_IS, BEFORE, PARTICIPANTS, Protocol

# These colours can be told apart with every common form of colour blindness, on white and on near-black.
BLUE = "#1e64f2"
ORANGE = "#c7790e"
VIOLET = "#7e67b5"
RED = "#c9174f"
TEAL = "#5aada7"
GREY = "#7d8590"
PALETTE = (BLUE, ORANGE, VIOLET, RED, TEAL, GREY)


class Look(NamedTuple):
    """Colour and marker of a protocol in charts, cards and tables."""

    color: str
    symbol: str


LOOKS: dict[Protocol, Look] = {
    AS_IS: Look(BLUE, "circle"),
    ADAPTED: Look(ORANGE, "square"),
    PARTICIPANTS: Look(VIOLET, "x"),
    BEFORE: Look(RED, "triangle-down"),
    AFTER: Look(TEAL, "diamond"),
}
