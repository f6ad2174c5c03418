"""Building blocks of all pages. A page is a single HTML file that works offline and can be sent by mail."""

import json
from html import escape
from importlib.resources import files
from typing import Any

import tomli_w

# With this policy the browser blocks every request to the network.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def document(title: str, subtitle: str, body: str) -> str:
    """Return a whole page. `subtitle` and `body` are HTML."""
    # Plotly is slow to load, and most commands do not need it.
    from plotly.offline import get_plotlyjs

    assets = files("coterie.report")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} · Coterie</title>
<style>
{assets.joinpath("page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<header>
<h1>{escape(title)}</h1>
<p class="subtitle">{subtitle}</p>
</header>
{body}
</main>
<script>{get_plotlyjs()}</script>
<script>
{assets.joinpath("page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def section(title: str, *parts: str) -> str:
    """Return a section with a heading. All arguments are HTML."""
    body = "\n".join(parts)
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>\n"


def note(text: str) -> str:
    """Return a paragraph in small type. `text` is HTML."""
    return f'<p class="note">{text}</p>'


def chart(key: str, title: str, label: str, caption: str, figure: dict[str, Any] | None, tall: bool = False) -> str:
    """Return a figure in its own section. `label` is read to people who cannot see it; `caption` is HTML."""
    if figure is None:
        body = '<p class="empty">There is nothing to show.</p>'
    else:
        # A "<" in the name of a client could end the script element.
        data = json.dumps(figure, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
        body = (
            f'<div class="chart{" tall" if tall else ""}" id="{key}" role="img" aria-label="{escape(label)}">'
            "<noscript>This chart needs JavaScript.</noscript></div>"
            f'<script type="application/json" id="{key}-figure">{data}</script>'
        )
    return section(title, f'<figure>{body}\n<figcaption class="note">{caption}</figcaption></figure>')


def recipe_section(summary: str, recipe: dict[str, Any]) -> str:
    """Return a section with the recipe as TOML, folded under a summary."""
    text = escape(tomli_w.dumps(recipe))
    return section("Recipe", f"<details><summary>{summary}</summary>\n<pre><code>{text}</code></pre></details>")


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Return a table whose first column names the rows. All cells are HTML."""
    head = "".join(f'<th scope="col">{heading}</th>' if heading else "<td></td>" for heading in headings)
    body = "\n".join(
        f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        for name, *cells in rows
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def parted(parts: list[str]) -> str:
    """Return short facts in one line, separated by dots."""
    return " · ".join(f"<span>{part}</span>" for part in parts)
