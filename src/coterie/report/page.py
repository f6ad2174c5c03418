"""The page of a run."""

from typing import Any

from coterie.measure.protocols import PROTOCOLS, Figures
from coterie.measure.record import Record
from coterie.measure.summary import Summary
from coterie.report.charts import accuracy_chart, loss_chart
from coterie.report.document import chart, document, note, recipe_section, section
from coterie.report.sections import (
    LOSSES,
    cost_table,
    explanations,
    headline,
    loss_table,
    protocol_sentence,
    statistics_note,
    statistics_table,
    stored_sentence,
    subtitle,
)
from coterie.report.strip import clients_chart, untested
from coterie.report.units import percent_with_error
from coterie.report.words import things


def page(
    name: str, recipe: dict[str, Any], summary: Summary, history: list[Record], clients: list[dict[str, Any]]
) -> str:
    """Return the page of a run as HTML: headline figures, curves, a dot for each client, tables and the recipe."""
    missing, score = untested(clients), summary.score
    title = score[0].upper() + score[1:]
    charts = [
        chart(
            "accuracy",
            title,
            f"Mean {score} over clients, by round. After the last round: {_final_means(summary)}.",
            "Mean over clients at each evaluation. Every client is tested on its own test examples. The dashed line is "
            "the same mean on training examples.",
            accuracy_chart(history),
        ),
        chart(
            "loss",
            "Training loss",
            "Training loss by round, of each round's cohort and of all existing users.",
            "Thin line: average loss of the cohort in each round. Line with markers: average training loss of all "
            "existing users, weighted by their numbers of examples.",
            loss_chart(history),
        ),
        chart(
            "clients",
            "Clients",
            f"{title} of every client, one dot each. Means: {_final_means(summary)}.",
            "Each dot is a client. Solid lines show the mean, dotted lines the bottom decile."
            + (f" Not shown: {things(missing, 'client')} without test examples." if missing else ""),
            clients_chart(summary, clients),
        ),
    ]
    parts = [
        headline(summary, clients),
        *charts,
        section(
            "Statistics",
            statistics_table(summary),
            note(statistics_note(summary)),
            explanations(summary),
            f'<blockquote class="protocol">{protocol_sentence(summary)}</blockquote>',
        ),
        section("Losses", loss_table(summary), note(LOSSES)),
        section(
            "Cost",
            cost_table(summary, history),
            note("Summed over clients. Evaluation counts only in its own row. A visit is one client in one round."),
            note(stored_sentence(summary)),
        ),
        recipe_section("recipe.toml, with the value of every setting", recipe),
    ]
    return document(name, subtitle(recipe, summary, clients), "\n".join(parts))


def _final_means(figures: Figures) -> str:
    found = [(protocol.title, figures[protocol.key]) for protocol in PROTOCOLS]
    return "; ".join(f"{title} {percent_with_error(own.mean, own.stderr, own.clients)} percent" for title, own in found)
