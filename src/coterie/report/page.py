"""The page of a run."""

from typing import Any

from coterie.measure.protocols import PROTOCOLS, Figures
from coterie.measure.record import Record
from coterie.measure.summary import Summary
from coterie.report.charts import accuracy_chart, loss_chart
from coterie.report.document import chart, document, note, recipe_section, section
from coterie.report.sections import cost_table, headline, protocol_sentence, statistics_table, subtitle
from coterie.report.strip import clients_chart, untested
from coterie.report.units import percent_with_error


def page(
    name: str, recipe: dict[str, Any], summary: Summary, history: list[Record], clients: list[dict[str, Any]]
) -> str:
    """The run as a self-contained page: headline figures, curves, distribution over clients, tables, recipe."""
    missing, score = untested(clients), summary.score
    title = score[0].upper() + score[1:]
    charts = [
        chart(
            "accuracy",
            title,
            f"Mean {score} over clients against rounds. At the end: {_final_means(summary)}.",
            "Mean over clients on their own test examples, at each evaluation.",
            accuracy_chart(history),
        ),
        chart(
            "loss",
            "Training loss",
            "Training loss against rounds: the estimate of each round's cohort, and the objective over all clients.",
            "Thin: the estimate from each round's cohort. Marked: objective (1), over all clients of the training.",
            loss_chart(history),
        ),
        chart(
            "clients",
            "Clients",
            f"{title} of every client, a dot each. Means: {_final_means(summary)}.",
            "Each client is a dot; solid line: mean, dotted line: bottom decile."
            + (f" Not shown: {missing:,} without test examples." if missing else ""),
            clients_chart(summary, clients),
        ),
    ]
    parts = [
        headline(summary, clients),
        *charts,
        section(
            "Statistics",
            statistics_table(summary),
            note(f"{title} over clients in percent; last ten: the mean over the last ten evaluations."),
            f'<blockquote class="protocol">{protocol_sentence(summary)}</blockquote>',
        ),
        section(
            "Cost",
            cost_table(summary, history),
            note("Of training, summed over clients, without evaluation. A visit is one client in one round."),
        ),
        recipe_section("recipe.toml, every key resolved", recipe),
    ]
    return document(name, subtitle(recipe, summary, clients), "\n".join(parts))


def _final_means(figures: Figures) -> str:
    found = [(protocol.title, figures[protocol.key]) for protocol in PROTOCOLS]
    return "; ".join(f"{title} {percent_with_error(own.mean, own.stderr)} percent" for title, own in found)
