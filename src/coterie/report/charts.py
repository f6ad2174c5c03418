"""Curves over rounds, as Plotly figures. A chart is None if there is nothing to draw."""

import math
from typing import Any

from coterie.measure.protocols import ADAPTED, AFTER, AS_IS, PARTICIPANTS, Protocol, Statistics
from coterie.measure.record import Evaluated, Record
from coterie.report.looks import BLUE, GREY, LOOKS
from coterie.report.units import known, percent_with_error

Plot = dict[str, Any]
"""A Plotly figure, or a part of one, as plain dictionaries."""
MARGIN = {"l": 16, "r": 12, "t": 30, "b": 20}


def accuracy_chart(history: list[Record]) -> Plot | None:
    """Draw the mean score of each protocol at each evaluation."""
    evaluated = [(record.round, record.eval) for record in history if record.eval]
    curves = [_curve(protocol, evaluated) for protocol in (PARTICIPANTS, AFTER, ADAPTED)]
    curves += [_training_curve(evaluated), _curve(AS_IS, evaluated)]
    traces = [trace for trace in curves if trace]
    if not traces:
        return None
    lowest = min(min(trace["y"]) for trace in traces)
    return figure(traces[::-1], rounds_axis(len(history)), accuracy_axis(lowest), legend=True)


def loss_chart(history: list[Record]) -> Plot | None:
    """Draw the training loss of each round's cohort, and that of all existing users at each evaluation."""
    traces = [
        _losses(
            "the round's cohort",
            [(record.round, record.train_loss) for record in history],
            GREY,
            {"mode": "lines", "line": {"width": 1.2, "color": GREY}},
        ),
        _losses(
            "all existing users",
            [(record.round, record.eval.train_loss) for record in history if record.eval],
            BLUE,
            {"mode": "lines+markers", "line": {"width": 2.4, "color": BLUE}, "marker": {"size": 7}},
        ),
    ]
    drawn = [trace for trace in traces if trace["y"]]
    if not drawn:
        return None
    values = [value for trace in drawn for value in trace["y"]]
    vertical: Plot = {"tickformat": "~g"}
    if min(values) > 0 and max(values) > 10 * min(values):
        vertical |= {"type": "log", "dtick": 1 if max(values) > 1000 * min(values) else "D2"}
    else:
        vertical |= {"rangemode": "tozero"}
    return figure(drawn, rounds_axis(len(history)), vertical, legend=True)


def figure(traces: list[Plot], horizontal: Plot, vertical: Plot, legend: bool) -> Plot:
    """Return a figure with these traces and axes in the style of all pages."""
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


def rounds_axis(rounds: int) -> Plot:
    """Return a horizontal axis for this number of rounds."""
    few = {"dtick": 1} if rounds <= 10 else {}
    return {"title": {"text": "round", "font": {"size": 13}}, "tickformat": ",d", **few}


def accuracy_axis(lowest: float) -> Plot:
    """Return an axis from a tenth below the lowest score, but not below -100 %, to just above 100 %.

    Scores below zero are possible, as R² can be negative.
    """
    bottom = max(0.0 if lowest >= 0 else -1.0, math.floor(10 * lowest - 0.2) / 10)
    # room for half a marker at either end
    pad = 0.03 * (1 - bottom) + 0.005
    return {"tickformat": ".0%", "range": [bottom - pad, 1 + pad]}


def _curve(protocol: Protocol, evaluated: list[tuple[int, Evaluated]]) -> Plot | None:
    thin = {"dash": "dot", "width": 1.6} if protocol is PARTICIPANTS else {}
    return _scores(protocol.title, [(index, figures[protocol.key]) for index, figures in evaluated], protocol, thin)


def _training_curve(evaluated: list[tuple[int, Evaluated]]) -> Plot | None:
    points = [(index, figures.train_score) for index, figures in evaluated if figures.train_score]
    return _scores(f"{AS_IS.title}, on training examples", points, AS_IS, {"dash": "dash", "width": 1.6})


def _scores(name: str, points: list[tuple[int, Statistics]], protocol: Protocol, style: Plot) -> Plot | None:
    points = [(index, found) for index, found in points if known(found.mean) is not None]
    if not points:
        return None
    color, symbol = LOOKS[protocol]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [index for index, _ in points],
        "y": [found.mean for _, found in points],
        "customdata": [percent_with_error(found.mean, found.stderr, found.clients) for _, found in points],
        "line": {"color": color, "width": 2.4, **style},
        "marker": {"symbol": symbol, "size": 7, "color": color},
        "hovertemplate": f"{name}<br>round %{{x}}<br>%{{customdata}} %<extra></extra>",
    }


def _losses(name: str, points: list[tuple[int, float | None]], color: str, style: Plot) -> Plot:
    drawn = [(index, loss) for index, loss in points if known(loss) is not None]
    return {
        "type": "scatter",
        "name": name,
        "x": [index for index, _ in drawn],
        "y": [loss for _, loss in drawn],
        "marker": {"color": color},
        "hovertemplate": f"{name}<br>round %{{x}}<br>%{{y:.4g}}<extra></extra>",
        **style,
    }
