"""The page of an experiment: curves on a logarithmic scale, and tables."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from coterie.report.charts import Plot, figure
from coterie.report.document import chart, document, note, parted, section, table
from coterie.report.looks import PALETTE
from coterie.report.tables import Table

SIDE_BY_SIDE = "display:grid;gap:20px;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))"


class Line(NamedTuple):
    """One curve of a panel."""

    name: str
    y: Sequence[float]
    color: int
    """Index into the palette."""
    dash: str = "solid"
    """Dash style of Plotly. Only solid lines appear in the legend."""
    first: int = 0
    """Value of x at the first point."""


class Panel(NamedTuple):
    """A chart with several curves."""

    title: str
    axis: str
    """Title of the vertical axis."""
    lines: Sequence[Line]
    caption: str
    across: str = "communication round"
    """Title of the horizontal axis."""


def lab_page(title: str, facts: Sequence[str], tables: Sequence[Table], rows: Sequence[Sequence[Panel]]) -> str:
    """Return a page with rows of panels, side by side if there is room, followed by tables."""
    body = []
    for n, row in enumerate(rows):
        drawn = [_panel(f"panel-{n}-{k}", panel) for k, panel in enumerate(row)]
        body.append(f'<div style="{SIDE_BY_SIDE}">\n{"".join(drawn)}</div>')
    body += [section(escape(each.title), _table(each)) for each in tables]
    return document(title, parted([escape(fact) for fact in facts]), "\n".join(body))


def _table(shown: Table) -> str:
    rows = [[escape(cell) for cell in line] for line in shown.lines]
    return table([escape(heading) for heading in shown.headings], rows) + "".join(map(note, map(escape, shown.notes)))


def _panel(key: str, panel: Panel) -> str:
    traces = [trace for line in panel.lines if (trace := _trace(line))["y"]]
    drawn = figure(traces, _axis(panel.across), _powers(panel.axis), legend=True) if traces else None
    label = f"{panel.title}: {panel.axis} against {panel.across}"
    return chart(key, escape(panel.title), label, escape(panel.caption), drawn)


def _trace(line: Line) -> Plot:
    """Return the curve without the values that a logarithmic scale cannot show."""
    points = [(x, y) for x, y in enumerate(line.y, line.first) if y > 0]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "showlegend": line.dash == "solid",
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": PALETTE[line.color], "width": 2, "dash": line.dash},
        "hovertemplate": f"{escape(line.name)}<br>%{{x}}: %{{y:.3g}}<extra></extra>",
    }


def _axis(text: str) -> Plot:
    return {"title": {"text": text, "font": {"size": 13}, "standoff": 12}}


def _powers(text: str) -> Plot:
    return {"type": "log", "exponentformat": "power", "nticks": 10, **_axis(text)}
