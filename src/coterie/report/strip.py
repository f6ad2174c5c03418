"""Chart of the distribution over clients, with a dot for each client."""

import json
import math
from collections import defaultdict
from html import escape
from typing import Any

from coterie.measure.protocols import OF_ALL_CLIENTS, Protocol
from coterie.measure.summary import Summary
from coterie.report.charts import Plot, accuracy_axis, figure
from coterie.report.looks import LOOKS
from coterie.report.units import DASH, count, known, percent

WIDTH = 0.42
"""Largest distance of a dot from the middle of its column."""


def clients_chart(summary: Summary, clients: list[dict[str, Any]]) -> Plot | None:
    """Draw the score of every tested client: a column of dots per protocol, with lines at mean and bottom decile."""
    traces: list[Plot] = []
    headings: list[str] = []
    for protocol in OF_ALL_CLIENTS:
        key, restricted = ("adapted", "adapted_restricted") if protocol.adapts else ("accuracy", "restricted")
        tested = [row for row in clients if row.get("role") == protocol.group and known(row.get(key)) is not None]
        if tested:
            place = len(headings)
            headings.append(protocol.title.replace(", ", "<br>") + f"<br>n = {len(tested):,}")
            found = summary[protocol.key]
            traces += _level(protocol, place, "mean", found.mean, "solid")
            traces += _level(protocol, place, "bottom decile", found.bottom_decile, "dot")
            traces.append(_dots(protocol, place, tested, key, restricted, summary.score))
    if not traces:
        return None
    lowest = min(min(trace["y"]) for trace in traces)
    places = list(range(len(headings)))
    horizontal = {"tickvals": places, "ticktext": headings, "range": [-0.5, len(headings) - 0.5], "fixedrange": True}
    return figure(traces, horizontal, accuracy_axis(lowest), legend=False)


def untested(clients: list[dict[str, Any]]) -> int:
    """Count the clients without test examples, which have no score."""
    return sum(known(row.get("accuracy")) is None for row in clients)


def _dots(protocol: Protocol, place: int, rows: list[dict[str, Any]], key: str, restricted: str, score: str) -> Plot:
    shares = [float(row[key]) for row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": protocol.title,
        "x": [place + offset for offset in side_by_side(shares)],
        "y": shares,
        "customdata": [_describe(row, key, restricted, score) for row in rows],
        "marker": {
            "symbol": LOOKS[protocol].symbol,
            "size": 8 if len(rows) <= 200 else 5,
            "color": LOOKS[protocol].color,
            "opacity": 0.75,
        },
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _level(protocol: Protocol, place: int, name: str, share: float | None, dash: str) -> list[Plot]:
    height = known(share)
    if height is None:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [place - WIDTH, place + WIDTH],
            "y": [height, height],
            "line": {"color": LOOKS[protocol].color, "width": 1.6, "dash": dash},
            "hovertemplate": f"{protocol.title}<br>{name} {percent(height)} %<extra></extra>",
        }
    ]


def side_by_side(shares: list[float]) -> list[float]:
    """Return horizontal offsets, at most `WIDTH`, that place dots with nearly equal scores side by side."""
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


def _describe(row: dict[str, Any], key: str, restricted: str, score: str) -> str:
    """Return the hover text of a client. Names are escaped, as Plotly interprets HTML tags, but quotes are not."""
    share, own = known(row[key]), known(row.get(restricted))
    lines = [
        f"<b>client {escape(_short(row.get('client'), 40), quote=False)}</b>",
        f"{score} {percent(share)} %",
        f"classes {escape(_short(_classes(row.get('classes')), 48), quote=False)}",
        f"{count(row.get('train_examples'))} training examples",
        f"{count(row.get('visits'))} visits",
    ]
    if own is not None and own != share:
        lines.insert(2, f"{percent(own)} % among its own classes")
    return "<br>".join(lines)


def _classes(value: Any) -> Any:
    """Return the names of a client's classes, separated by commas. Older runs have them separated by blanks."""
    try:
        return ", ".join(json.loads(value))
    except (TypeError, ValueError):
        return value


def _short(value: Any, length: int) -> str:
    text = DASH if value is None else str(value)
    return text if len(text) <= length else text[: length - 1] + "…"
