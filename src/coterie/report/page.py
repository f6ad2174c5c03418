"""The page of a run: one HTML file that needs no network, to be mailed around."""

import json
from html import escape
from importlib.resources import files

import tomli_w

from coterie.report.charts import accuracy_chart, loss_chart
from coterie.report.protocols import ALL, Record
from coterie.report.sections import cost_table, headline, protocol_sentence, statistics_table, subtitle
from coterie.report.strip import clients_chart, untested
from coterie.report.units import percent_with_error

# The browser itself then refuses whatever would leave the page.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(name: str, recipe: Record, summary: Record, history: list[Record], clients: list[Record]) -> str:
    """The run as a self-contained page: headline figures, curves, distribution over clients, tables, recipe."""
    # Plotly is slow to load and most commands do without.
    from plotly.offline import get_plotlyjs

    assets = files("coterie.report")
    missing = untested(clients)
    charts = [
        _chart(
            "accuracy",
            "Accuracy",
            f"Mean accuracy over clients against rounds. At the end: {_final_means(summary)}.",
            "Mean over clients on their own test examples, at each evaluation.",
            accuracy_chart(history),
        ),
        _chart(
            "loss",
            "Training loss",
            "Training loss against rounds: the estimate of each round's cohort, and the objective over all clients.",
            "Thin: the estimate from each round's cohort. Marked: objective (1), over all clients of the training.",
            loss_chart(history),
        ),
        _chart(
            "clients",
            "Clients",
            f"Accuracy of every client, a dot each. Means: {_final_means(summary)}.",
            "Each client is a dot; solid line: mean, dotted line: bottom decile."
            + (f" Not shown: {missing:,} without test examples." if missing else ""),
            clients_chart(summary, clients),
        ),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(name)} · Coterie</title>
<style>
{assets.joinpath("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<header>
<h1>{escape(name)}</h1>
<p class="subtitle">{subtitle(recipe, summary, clients)}</p>
</header>
{headline(summary, clients)}
{"".join(charts)}
<section>
<h2>Statistics</h2>
{statistics_table(summary)}
<p class="note">Accuracy over clients in percent; last ten: the mean over the last ten evaluations.</p>
<blockquote class="protocol">{protocol_sentence(summary)}</blockquote>
</section>
<section>
<h2>Cost</h2>
{cost_table(summary, history)}
<p class="note">Of training, summed over clients, without evaluation. A visit is one client in one round.</p>
</section>
<section>
<h2>Recipe</h2>
<details><summary>recipe.toml, every key resolved</summary>
<pre><code>{escape(tomli_w.dumps(recipe))}</code></pre></details>
</section>
</main>
<script>{get_plotlyjs()}</script>
<script>
{assets.joinpath("page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _chart(key: str, title: str, label: str, caption: str, figure: Record | None) -> str:
    if figure is None:
        body = '<p class="empty">Nothing was measured.</p>'
    else:
        # "<" would let a client's name end the script element.
        data = json.dumps(figure, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        body = (
            f'<div class="chart" id="{key}" role="img" aria-label="{escape(label)}">'
            "<noscript>The chart needs JavaScript.</noscript></div>"
            f'<script type="application/json" id="{key}-figure">{data}</script>'
        )
    return f"""<section>
<h2>{title}</h2>
<figure>{body}
<figcaption class="note">{caption}</figcaption></figure>
</section>
"""


def _final_means(summary: Record) -> str:
    figures = [(protocol.label, protocol.of(summary)) for protocol in ALL]
    return "; ".join(f"{label} {percent_with_error(f.get('mean'), f.get('stderr'))} percent" for label, f in figures)
