"""The curves against rounds, as plotly figures in plain dictionaries; None where there is nothing to draw."""

import math
from typing import Any

from coterie.report.protocols import ADAPTED, AFTER, AS_IS, PARTICIPANTS, Protocol, Record
from coterie.report.units import known, percent_with_error

GREY = "#7d8590"
"""Legible on white and on near-black."""
MARGIN = {"l": 16, "r": 12, "t": 30, "b": 20}


def accuracy_chart(history: list[Record]) -> Record | None:
    """Mean accuracy of each protocol at each evaluation."""
    evaluated = [record for record in history if record.get("eval")]
    traces = [trace for protocol in (PARTICIPANTS, AFTER, ADAPTED, AS_IS) if (trace := _curve(protocol, evaluated))]
    if not traces:
        return None
    lowest = min(min(trace["y"]) for trace in traces)
    return figure(traces[::-1], rounds_axis(history), accuracy_axis(lowest), legend=True)


def loss_chart(history: list[Record]) -> Record | None:
    """The cohorts' training loss round by round, and objective (1) over all clients where it was evaluated."""
    traces = [
        _losses("cohort of the round", history, GREY, {"mode": "lines", "line": {"width": 1.2, "color": GREY}}),
        _losses(
            "all clients, objective (1)",
            [{"round": record["round"], **record["eval"]} for record in history if record.get("eval")],
            AS_IS.color,
            {"mode": "lines+markers", "line": {"width": 2.4, "color": AS_IS.color}, "marker": {"size": 7}},
        ),
    ]
    drawn = [trace for trace in traces if trace["y"]]
    if not drawn:
        return None
    values = [value for trace in drawn for value in trace["y"]]
    vertical: Record = {"tickformat": "~g"}
    if min(values) > 0 and max(values) > 10 * min(values):
        vertical |= {"type": "log", "dtick": 1 if max(values) > 1000 * min(values) else "D2"}
    else:
        vertical |= {"rangemode": "tozero"}
    return figure(drawn, rounds_axis(history), vertical, legend=True)


def figure(traces: list[Record], horizontal: Record, vertical: Record, legend: bool) -> Record:
    grid = {"gridcolor": "rgba(125,133,144,0.22)", "zeroline": False, "linecolor": GREY, "automargin": True}
    layout: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": GREY, "size": 13, "family": "system-ui, sans-serif"},
        "margin": MARGIN,
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": GREY, "activecolor": GREY},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "itemsizing": "trace"},
        "xaxis": {**grid, "showgrid": False, **horizontal},
        "yaxis": {**grid, **vertical},
    }
    return {"data": traces, "layout": layout}


def rounds_axis(history: list[Record]) -> Record:
    few = {"dtick": 1} if len(history) <= 10 else {}
    return {"title": {"text": "round", "font": {"size": 13}}, "tickformat": ",d", **few}


def accuracy_axis(lowest: float) -> Record:
    """From a tenth below the lowest figure to just above 100 %; of figures below zero, which R² can be, a part."""
    bottom = max(0.0 if lowest >= 0 else -1.0, math.floor(10 * lowest - 0.2) / 10)
    # room for half a marker at either end
    pad = 0.03 * (1 - bottom) + 0.005
    return {"tickformat": ".0%", "range": [bottom - pad, 1 + pad]}


def _curve(protocol: Protocol, evaluated: list[Record]) -> Record | None:
    points = [(record["round"], protocol.of(record["eval"])) for record in evaluated]
    points = [(index, figures) for index, figures in points if known(figures.get("mean")) is not None]
    if not points:
        return None
    line: Record = {"color": protocol.color, "width": 2.4}
    if protocol is PARTICIPANTS:
        line |= {"dash": "dot", "width": 1.6}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": protocol.label,
        "x": [index for index, _ in points],
        "y": [figures["mean"] for _, figures in points],
        "customdata": [percent_with_error(figures["mean"], figures.get("stderr")) for _, figures in points],
        "line": line,
        "marker": {"symbol": protocol.symbol, "size": 7, "color": protocol.color},
        "hovertemplate": f"{protocol.label}<br>round %{{x}}<br>%{{customdata}} %<extra></extra>",
    }


def _losses(name: str, records: list[Record], color: str, style: Record) -> Record:
    points = [(record["round"], known(record.get("train_loss"))) for record in records]
    drawn = [(index, loss) for index, loss in points if loss is not None]
    return {
        "type": "scatter",
        "name": name,
        "x": [index for index, _ in drawn],
        "y": [loss for _, loss in drawn],
        "marker": {"color": color},
        "hovertemplate": f"{name}<br>round %{{x}}<br>%{{y:.4g}}<extra></extra>",
        **style,
    }
