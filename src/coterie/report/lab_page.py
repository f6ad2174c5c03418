"""The page of an experiment: curves or bars, and tables."""

import math
from collections.abc import Sequence
from html import escape

from coterie.report.charts import Plot, figure
from coterie.report.document import chart, document, note, parted, section, table
from coterie.report.looks import PALETTE
from coterie.report.panels import FEW, Bars, Drawing, Line, Panel, drawn_points
from coterie.report.tables import Table
from coterie.report.units import scaled

SIDE_BY_SIDE = "display:grid;gap:20px;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))"


def lab_page(title: str, facts: Sequence[str], tables: Sequence[Table], rows: Sequence[Sequence[Drawing]]) -> str:
    """Return a page with rows of panels, side by side if there is room, followed by tables."""
    body = []
    for n, row in enumerate(rows):
        drawn = [_drawing(f"panel-{n}-{k}", panel) for k, panel in enumerate(row)]
        body.append(f'<div style="{SIDE_BY_SIDE}">\n{"".join(drawn)}</div>')
    body += [section(escape(each.title), _table(each)) for each in tables]
    return document(title, parted([escape(fact) for fact in facts]), "\n".join(body))


def _table(shown: Table) -> str:
    rows = [[escape(cell) for cell in line] for line in shown.lines]
    return table([escape(heading) for heading in shown.headings], rows) + "".join(map(note, map(escape, shown.notes)))


def _drawing(key: str, drawing: Drawing) -> str:
    return _bars(key, drawing) if isinstance(drawing, Bars) else _panel(key, drawing)


def _bars(key: str, bars: Bars) -> str:
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": list(bars.values),
        "y": list(bars.names),
        "text": [scaled(value, bars.unit) for value in bars.values],
        "marker": {"color": PALETTE[0]},
        "hovertemplate": "%{y}: %{text}<extra></extra>",
    }
    horizontal = {**_axis(bars.axis), "tickformat": "~s", "rangemode": "tozero"}
    # Plotly draws the first bar at the bottom
    drawn = figure([trace], horizontal, {"autorange": "reversed", "showgrid": False}, legend=False)
    label = f"{bars.title}: {bars.axis}"
    return chart(key, escape(bars.title), label, escape(bars.caption), drawn if bars.names else None)


def _panel(key: str, panel: Panel) -> str:
    traces = [trace for line in panel.lines if (trace := _trace(line, panel.logarithmic))["y"]]
    vertical = _axis(panel.axis)
    if traces and panel.logarithmic:
        vertical |= _powers([y for trace in traces for y in trace["y"]])
    drawn = figure(traces, _axis(panel.across), vertical, legend=True) if traces else None
    label = f"{panel.title}: {panel.axis} against {panel.across}"
    return chart(key, escape(panel.title), label, escape(panel.caption), drawn)


def _trace(line: Line, logarithmic: bool) -> Plot:
    points = drawn_points(line, logarithmic)
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(points) <= FEW else "lines",
        "name": line.name,
        "showlegend": line.listed,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": PALETTE[line.color], "width": 2, "dash": line.dash},
        "hovertemplate": f"{escape(line.name)}<br>%{{x}}: %{{y:.3g}}<extra></extra>",
    }


def _axis(text: str) -> Plot:
    return {"title": {"text": text, "font": {"size": 13}, "standoff": 12}}


def _powers(values: Sequence[float]) -> Plot:
    """Return a logarithmic axis with at most about six labelled powers of ten, or also 2 and 5 times few powers."""
    decades = math.log10(max(values) / min(values))
    return {"type": "log", "exponentformat": "power", "dtick": math.ceil(decades / 6) if decades > 1.5 else "D2"}
