"""Charts of a sweep, as Plotly figures. A chart is None if there is nothing to draw."""

import json
from html import escape
from typing import Any

from coterie.lab.sweep.outcome import Outcome
from coterie.lab.sweep.trial import Trial
from coterie.report.charts import Plot, figure, rounds_axis
from coterie.report.looks import BLUE, GREY, ORANGE, RED

BEST, COMPLETE, GONE = ORANGE, BLUE, RED
WIDE = 10
"""Ratio of the largest to the smallest value from which on an axis is logarithmic."""


def slice_chart(found: Outcome, key: str) -> Plot | None:
    """Draw the score of each complete trial against one setting. The other trials are marks at the bottom."""
    scored = {trial.number: trial.score for trial in found.trials if trial.score is not None}
    if not scored or found.best is None:
        return None
    scores = list(scored.values())
    low, high = min(scores), max(scores)
    room = max(high - low, 0.01)
    vertical = {"range": [low - 0.3 * room, high + 0.15 * room], "tickformat": ".1%", "nticks": 6}
    rest = [trial for trial in found.trials if trial.number in scored and trial.number != found.best.number]
    others = found.incomplete
    horizontal = _axis([trial.point[key] for trial in found.trials])
    category = horizontal.get("type") == "category"
    traces = [
        _points(
            others,
            key,
            category,
            [low - 0.24 * room] * len(others),
            {"symbol": "line-ns-open", "size": 12, "color": GREY},
        ),
        _points(rest, key, category, [scored[trial.number] for trial in rest], {"size": 9, "color": COMPLETE}),
        _points([found.best], key, category, [scored[found.best.number]], {"size": 15, "color": BEST}),
    ]
    return figure([trace for trace in traces if trace["x"]], horizontal, vertical, legend=False)


def curves_chart(found: Outcome) -> Plot | None:
    """Draw the validation score over rounds, with a line for each trial."""
    trials = [trial for trial in found.trials if trial.curve]
    if not trials:
        return None
    looks: dict[str, Plot] = {
        "pruned": {"color": GREY, "width": 1.2, "dash": "dot"},
        "diverged": {"color": GONE, "width": 1.2, "dash": "dot"},
        "failed": {"color": GONE, "width": 1.2, "dash": "dot"},
        "complete": {"color": COMPLETE, "width": 1.4},
        "best": {"color": BEST, "width": 3},
    }
    names = [(_kind(trial, found), trial) for trial in trials]
    names.sort(key=lambda pair: list(looks).index(pair[0]))
    traces, told = [], set()
    for kind, trial in names:
        points = sorted(trial.curve.items())
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": kind,
                "legendgroup": kind,
                "showlegend": kind not in told,
                "x": [index for index, _ in points],
                "y": [score for _, score in points],
                "line": looks[kind],
                "marker": {"size": 5 if kind != "best" else 7, "color": looks[kind]["color"]},
                "hovertemplate": f"{_told(trial)}<br>round %{{x}}: %{{y:.2%}}<extra></extra>",
            }
        )
        told.add(kind)
    longest = max(index for trial in trials for index in trial.curve)
    drawn = figure(traces, rounds_axis(longest), {"tickformat": ".0%"}, legend=True)
    drawn["layout"]["legend"]["traceorder"] = "reversed"
    return drawn


def _points(trials: list[Trial], key: str, category: bool, heights: list[float], marker: Plot) -> Plot:
    values = [trial.point[key] for trial in trials]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_word(value) for value in values] if category else values,
        "y": heights,
        "customdata": [_told(trial) for trial in trials],
        "marker": {**marker, "line": {"width": 2 if "symbol" in marker else 0}},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _axis(values: list[Any]) -> Plot:
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return {"type": "category"}
    low, high = min(values), max(values)
    if low > 0 and high >= WIDE * low:
        return {"type": "log", "tickformat": "~g", "dtick": 1 if high >= WIDE**3 * low else "D2"}
    return {"tickformat": "~g"}


def _kind(trial: Trial, found: Outcome) -> str:
    return "best" if found.best is not None and trial.number == found.best.number else trial.state


def _told(trial: Trial) -> str:
    score = trial.ending if trial.score is None else f"{100 * trial.score:.2f} %"
    lines = [
        f"trial {trial.number}: {score}",
        *(f"{key} = {_word(value)}" for key, value in trial.point.items()),
    ]
    return "<br>".join(escape(line, quote=False) for line in lines)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
