"""The parts of a run's page that are text and tables; each returns HTML with everything escaped."""

import re
from collections.abc import Callable
from html import escape
from typing import Any

from coterie.report.document import parted, people, table, things
from coterie.report.protocols import ADAPTED, AFTER, ALL, AS_IS, BEFORE, Protocol, Record, statistics
from coterie.report.units import count, duration, known, percent, scaled


def subtitle(recipe: Record, summary: Record, clients: list[Record]) -> str:
    data = (recipe.get("data") or {}).get("name", "own data")
    existing, new = _number_of(clients, "existing"), _number_of(clients, "new")
    parts = [
        f"<strong>{escape(str(summary.get('method')))}</strong> on <strong>{escape(str(data))}</strong>",
        people(existing, new),
        things(int(summary.get("rounds") or 0), "round"),
        f"seed {escape(str(summary.get('seed')))}",
        f"engine {escape(str(summary.get('engine')))}",
    ]
    return parted(parts)


def headline(summary: Record, clients: list[Record]) -> str:
    """A card for each of the four protocols that matter to users."""
    cards = "".join(_card(protocol, summary, _number_of(clients, protocol.group)) for protocol in _HEADLINE)
    return f'<div class="cards">{cards}</div>'


_HEADLINE = {
    AS_IS: ("Existing clients", "as is"),
    ADAPTED: ("Existing clients", "adapted"),
    BEFORE: ("New users", "before adaptation"),
    AFTER: ("New users", "after adaptation"),
}


def _card(protocol: Protocol, summary: Record, clients: int) -> str:
    who, how = _HEADLINE[protocol]
    figures = protocol.of(summary)
    mean, stderr, decile = (figures.get(key) for key in ("mean", "stderr", "bottom_decile"))
    value = f"<b>{percent(mean, 1)}</b>"
    if known(mean) is None:
        below = "not measured" if clients else "none in this run"
    else:
        value += f" <span>± {percent(stderr, 1)} %</span>"
        below = f"bottom decile {percent(decile, 1)} %"
    return (
        f'<div class="card" style="--accent: {protocol.color}"><p class="who">{who} <span>{how}</span></p>\n'
        f'<p class="value">{value}</p>\n<p class="below">{below}</p></div>\n'
    )


def statistics_table(summary: Record) -> str:
    columns = statistics(summary)
    rows = []
    for protocol in ALL:
        figures = protocol.of(summary)
        name = f'<i class="swatch" style="--accent: {protocol.color}"></i>{protocol.label}'
        rows.append([name, *(percent(figures.get(key)) for key in columns)])
    return table(["clients", *columns.values()], rows)


def cost_table(summary: Record, history: list[Record]) -> str:
    cost = summary.get("cost") or {}
    rounds, visits = len(history), sum(len(record.get("cohort") or ()) for record in history)
    kinds: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("download", "bytes_down", lambda value: scaled(value, "B")),
        ("upload", "bytes_up", lambda value: scaled(value, "B")),
        ("computation", "flops", lambda value: scaled(value, "FLOP")),
        ("body forwards", "body_forwards", count),
        ("body backwards", "body_backwards", count),
        ("time", "seconds", duration),
    )
    rows = []
    for name, key, text in kinds:
        total = known(cost.get(key))
        shares = [total / number if total is not None and number else None for number in (rounds, visits)]
        rows.append([name, text(total), *map(text, shares)])
    return table(["", "in all", "per round", "per visit"], rows)


def protocol_sentence(summary: Record) -> str:
    """With the summary's keys set as code; then the method's emphasis, where it is known."""
    text = f"{escape(str(summary.get('protocol', '')))} {emphasis_sentence(summary)}".strip()
    return re.sub(r"\b(?:(?:existing|new)\.\w+|restricted_mean)\b", r"<code>\g<0></code>", text)


def emphasis_sentence(summary: Record) -> str:
    """Nothing, where that is not known of the method."""
    ratio = known(summary.get("emphasis"))
    if ratio is None:
        return ""
    return f"Emphasis on fast personalization against initial success, by Table 1 of FedDecay: {ratio:.3g}."


def _number_of(clients: list[Record], role: str) -> int:
    return sum(row.get("role") == role for row in clients)
