"""The distribution over clients, each client a dot."""

import math
from collections import defaultdict
from html import escape
from typing import Any

from coterie.report.charts import accuracy_axis, figure
from coterie.report.protocols import ADAPTED, AFTER, AS_IS, BEFORE, Protocol, Record
from coterie.report.units import DASH, count, known, percent

COLUMNS = (
    (AS_IS, "existing", "accuracy", "restricted"),
    (ADAPTED, "existing", "adapted", "adapted_restricted"),
    (BEFORE, "new", "accuracy", "restricted"),
    (AFTER, "new", "adapted", "adapted_restricted"),
)
WIDTH = 0.42
"""Half of what a column of dots may take of its place."""


def clients_chart(summary: Record, clients: list[Record]) -> Record | None:
    """Accuracy of every tested client: a column of dots for each protocol, its mean and bottom decile as lines."""
    traces: list[Record] = []
    headings: list[str] = []
    for protocol, role, key, restricted in COLUMNS:
        tested = [row for row in clients if row.get("role") == role and known(row.get(key)) is not None]
        if tested:
            place = len(headings)
            headings.append(protocol.label.replace(", ", "<br>") + f"<br>n = {len(tested):,}")
            figures = protocol.of(summary)
            traces += _level(protocol, place, "mean", figures.get("mean"), "solid")
            traces += _level(protocol, place, "bottom decile", figures.get("bottom_decile"), "dot")
            traces.append(_dots(protocol, place, tested, key, restricted, summary.get("score", "accuracy")))
    if not traces:
        return None
    lowest = min(min(trace["y"]) for trace in traces)
    places = list(range(len(headings)))
    horizontal = {"tickvals": places, "ticktext": headings, "range": [-0.5, len(headings) - 0.5], "fixedrange": True}
    return figure(traces, horizontal, accuracy_axis(lowest), legend=False)


def untested(clients: list[Record]) -> int:
    """Clients without test examples, which have no accuracy."""
    return sum(known(row.get("accuracy")) is None for row in clients)


def _dots(protocol: Protocol, place: int, rows: list[Record], key: str, restricted: str, score: str) -> Record:
    shares = [float(row[key]) for row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": protocol.label,
        "x": [place + offset for offset in spread(shares)],
        "y": shares,
        "customdata": [_describe(row, key, restricted, score) for row in rows],
        "marker": {
            "symbol": protocol.symbol,
            "size": 8 if len(rows) <= 200 else 5,
            "color": protocol.color,
            "opacity": 0.75,
        },
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _level(protocol: Protocol, place: int, name: str, share: Any, dash: str) -> list[Record]:
    height = known(share)
    if height is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [place - WIDTH, place + WIDTH],
            "y": [height, height],
            "line": {"color": protocol.color, "width": 1.6, "dash": dash},
            "hovertemplate": f"{protocol.label}<br>{name} {percent(height)} %<extra></extra>",
        }
    ]


def spread(shares: list[float]) -> list[float]:
    """Sideways places for dots so that (nearly) equal ones stand side by side, centred, within `WIDTH`."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for index in sorted(range(len(shares)), key=lambda index: shares[index]):
        neighbours[math.floor(50 * shares[index] + 0.5)].append(index)
    most = max(map(len, neighbours.values()), default=1)
    step = min(0.04, 2 * WIDTH / max(1, most - 1))
    offsets = [0.0] * len(shares)
    for level in neighbours.values():
        for position, index in enumerate(level):
            offsets[index] = round(step * (position - (len(level) - 1) / 2), 5)
    return offsets


def _describe(row: Record, key: str, restricted: str, score: str) -> str:
    """Plotly reads a few HTML tags in hover texts, so what users named is escaped; quotes it would show escaped."""
    share, own = known(row[key]), known(row.get(restricted))
    lines = [
        f"<b>client {escape(_short(row.get('client'), 40), quote=False)}</b>",
        f"{score} {percent(share)} %",
        f"classes {escape(_short(row.get('classes'), 48), quote=False)}",
        f"{count(row.get('train_examples'))} training examples",
        f"{count(row.get('visits'))} visits",
    ]
    if own is not None and own != share:
        lines.insert(2, f"among its own classes {percent(own)} %")
    return "<br>".join(lines)


def _short(value: Any, length: int) -> str:
    text = DASH if value is None else str(value)
    return text if len(text) <= length else text[: length - 1] + "…"
