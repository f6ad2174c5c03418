"""Text and tables of a run's page, as HTML. Everything that comes from users is escaped."""

import re
from collections.abc import Callable
from html import escape
from typing import Any

from coterie.measure.protocols import ADAPTED, AFTER, AS_IS, BEFORE, PROTOCOLS, Protocol
from coterie.measure.record import Record
from coterie.measure.summary import Summary
from coterie.report.columns import own, row_explanations, shown_lines, shown_statistics, title
from coterie.report.document import note, parted, table
from coterie.report.looks import LOOKS
from coterie.report.units import count, decimal, duration, known, percent, scaled
from coterie.report.words import people, things

EMPHASISED = ("feddecay", "fomaml")
"""Methods whose reports show the emphasis, because it is their purpose. summary.json has it for others too."""


def subtitle(recipe: dict[str, Any], summary: Summary, clients: list[dict[str, Any]]) -> str:
    """Return one line that says what was run."""
    data = (recipe.get("data") or {}).get("name", "own data")
    existing, new = _number_of(clients, "existing"), _number_of(clients, "new")
    parts = [
        f"<strong>{escape(summary.method)}</strong> on <strong>{escape(str(data))}</strong>",
        people(existing, new),
        things(summary.rounds, "round"),
        f"seed {summary.seed}",
        f"engine {escape(summary.engine)}",
    ]
    if summary.choices:
        parts.append(f"chooses among {escape(own(summary.choices))}")
    return parted(parts)


def headline(summary: Summary, clients: list[dict[str, Any]]) -> str:
    """Return a card for each protocol that evaluates all clients."""
    cards = "".join(_card(protocol, summary, _number_of(clients, protocol.group)) for protocol in _HEADLINE)
    remarks = [note(f"<strong>{escape(remark)}.</strong>") for remark in summary.remarks()]
    return f'<div class="cards">{cards}</div>' + (f"\n<div>{''.join(remarks)}</div>" if remarks else "")


_HEADLINE = {
    AS_IS: ("Existing users", "as is"),
    ADAPTED: ("Existing users", "adapted"),
    BEFORE: ("New users", "before adaptation"),
    AFTER: ("New users", "after adaptation"),
}


def _card(protocol: Protocol, summary: Summary, clients: int) -> str:
    who, how = _HEADLINE[protocol]
    found = summary[protocol.key]
    value = f"<b>{percent(found.mean, 1)}</b>"
    if known(found.mean) is None:
        below = ["not measured" if clients else "none in this run"]
    else:
        error = "one client" if found.clients == 1 else f"± {percent(found.stderr, 1)} %"
        value += f" <span>{error}</span>"
        parts = [line for line in shown_lines(summary) if line.protocol is protocol and line.part]
        below = [f"bottom decile {percent(found.bottom_decile, 1)} %"]
        below += [
            f"{each.part} ({count(each.statistics.clients)}) {percent(each.statistics.mean, 1)} %" for each in parts
        ]
    lines = "".join(f'<p class="below">{line}</p>' for line in below)
    return (
        f'<div class="card" style="--accent: {LOOKS[protocol].color}"><p class="who">{who} <span>{how}</span></p>\n'
        f'<p class="value">{value}</p>\n{lines}</div>\n'
    )


def statistics_table(summary: Summary) -> str:
    """Return a table with a row for each protocol and a column for each statistic."""
    columns = shown_statistics(summary)
    rows = []
    for line in shown_lines(summary):
        swatch = f'<i class="swatch" style="--accent: {LOOKS[line.protocol].color}"></i>'
        name = f"&emsp;&emsp;{line.part}" if line.part else f"{swatch}{line.title}"
        figures = [percent(getattr(line.statistics, column)) for column in columns]
        rows.append([name, count(line.statistics.clients), *figures])
    return table(["clients", "n", *columns.values()], rows)


def statistics_note(summary: Summary) -> str:
    """Return what the columns of the statistics table mean."""
    last = "ten" if summary.evaluations is None else summary.evaluations
    meanings = {
        "n": "number of clients",
        "weighted_mean": "mean weighted by each client's number of examples",
        "restricted_mean": "mean if each client chooses only among its own classes",
        "std": "standard deviation of these clients",
        "stderr": "standard error of the mean, unless there is only one client",
        "bottom_decile": "about a tenth of the clients score lower",
        "last10_mean": f"mean over the last {last} evaluations",
    }
    headings = {"n": "n", **shown_statistics(summary)}
    told = "; ".join(f"{headings[name]}: {meaning}" for name, meaning in meanings.items() if name in headings)
    return f"{escape(title(summary))} Columns: {told}."


def loss_table(summary: Summary) -> str:
    """Return a table of the mean losses over clients, with a row for each protocol."""
    rows = []
    for protocol in PROTOCOLS:
        found = summary[protocol.key]
        if found.loss is not None or found.train_loss is not None:
            rows.append([protocol.title, decimal(found.loss), decimal(found.train_loss)])
    return table(["clients", "test examples", "training examples"], rows)


LOSSES = (
    "Mean loss over clients, all with equal weight. On training examples, the mean before adaptation is the FedDecay "
    "paper's F<sub>IMS</sub>, initial success, and the mean after it is its F<sub>RP</sub>, fast personalization."
)
"""What the table of losses shows."""


def explanations(summary: Summary) -> str:
    """Return what the rows of the statistics table mean, as a list."""
    rows = row_explanations(summary).items()
    items = "".join(f"<li><strong>{name}</strong>: {explanation}</li>\n" for name, explanation in rows)
    return f'<ul class="note">\n{items}</ul>'


def cost_table(summary: Summary, history: list[Record]) -> str:
    """Return a table of the cost in total, per round and per visit."""
    rounds, visits = len(history), sum(len(record.cohort) for record in history)
    kinds: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("download", "bytes_down", lambda value: scaled(value, "B")),
        ("upload", "bytes_up", lambda value: scaled(value, "B")),
        ("computation", "flops", lambda value: scaled(value, "FLOP")),
        ("body forwards", "body_forwards", count),
        ("body backwards", "body_backwards", count),
        ("training time", "seconds", duration),
        ("evaluation time", "eval_seconds", duration),
    )
    rows = []
    for name, key, text in kinds:
        total = known(getattr(summary.cost, key))
        shares = [total / number if total is not None and number else None for number in (rounds, visits)]
        rows.append([name, text(total), *map(text, shares)])
    return table(["", "total", "per round", "per visit"], rows)


def stored_sentence(summary: Summary) -> str:
    """Return a sentence about what clients store, or nothing if it is not known."""
    if known(summary.stored_bytes) is None:
        return ""
    return (
        f"Between rounds an existing client stores {scaled(summary.stored_bytes, 'B')} of personal state, on average. "
        "A method that only shares one model needs none."
    )


def protocol_sentence(summary: Summary) -> str:
    """Return the sentence that says what was measured, with keys as code, followed by the method's emphasis."""
    text = f"{escape(summary.protocol)} {emphasis_sentence(summary)}".strip()
    return re.sub(r"\b(?:(?:existing|new)\.\w+|restricted_mean)\b", r"<code>\g<0></code>", text)


def emphasis_sentence(summary: Summary) -> str:
    """Return a sentence about the method's emphasis on fast personalization, or nothing if it is not known."""
    ratio = known(summary.emphasis)
    if ratio is None or summary.method not in EMPHASISED:
        return ""
    return (
        f"Emphasis {ratio:.3g} (Table 1 of the FedDecay paper): 0 favours the score before adaptation, and larger "
        "values favour the score after it."
    )


def _number_of(clients: list[dict[str, Any]], role: str) -> int:
    return sum(row.get("role") == role for row in clients)
