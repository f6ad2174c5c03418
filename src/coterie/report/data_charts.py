"""Charts of a data set and its clients, as Plotly figures."""

from html import escape
from typing import Any

from coterie.report.charts import Plot, figure
from coterie.report.looks import BLUE, ORANGE, TEAL

EXISTING, NEW = BLUE, TEAL
FAINTEST = 0.14
"""Opacity of a cell with a single example."""
LINES = 60
"""Largest number of clients whose names fit beside their rows."""
FEW, MANY = 6, 100
"""Numbers of bars below which gaps are wide, and above which there are no gaps."""
LONG = 24
"""Longest name that is shown in full, in characters."""


def bars(names: list[str], what: str, counted: str, series: dict[str, tuple[list[int], str]], stacked: bool) -> Plot:
    """Draw a bar for each name. `series` maps the name of each series to its counts and its colour."""
    traces: list[Plot] = [
        {
            "type": "bar",
            "name": name,
            "x": _shown(names),
            "y": counts,
            "marker": {"color": color, "line": {"width": 0}},
            "hovertemplate": f"{what} %{{x}}<br>%{{y:,}} {counted}, {name}<extra></extra>",
        }
        for name, (counts, color) in series.items()
        if any(counts)
    ]
    most = max(map(sum, zip(*(counts for counts, _ in series.values()), strict=True)))
    vertical = {"tickformat": ",~r", "title": _title(counted), **({"dtick": 1} if most <= FEW else {})}
    drawn = figure(traces, _categories(what, names), vertical, legend=len(traces) > 1)
    gap = max(0.15, 1 - len(names) / FEW) if len(names) <= MANY else 0
    drawn["layout"] |= {"barmode": "stack" if stacked else "group", "bargap": gap}
    drawn["layout"]["legend"]["traceorder"] = "normal"
    return drawn


def heat_map(held: dict[str, Any], what: str, counted: str) -> Plot:
    """Draw a row for each client and a column for each class, shaded by the number of examples.

    The shade grows with the square root, so that small counts remain visible next to large ones. It runs from
    transparent to full colour, which works on white and on near-black.
    """
    most = max(1, max(map(max, held["counts"])))
    shades = [(share, FAINTEST + (1 - FAINTEST) * share**0.5) for share in (step / 20 for step in range(21))]
    scale = [(0.0, 0.0), (0.5 / most, 0.0), (0.5 / most, FAINTEST), *(pair for pair in shades if pair[0] > 0.5 / most)]
    trace = {
        "type": "heatmap",
        "x": _shown(held["classes"]),
        "y": _who(held),
        "z": held["counts"],
        "zmin": 0,
        "zmax": most,
        "colorscale": [[place, f"rgba(30,100,242,{opacity:.3f})"] for place, opacity in scale],
        "colorbar": {
            "title": {**_title(counted), "side": "right"},
            "thickness": 12,
            "outlinewidth": 0,
            "tickformat": ",~r",
        },
        "hovertemplate": f"client %{{y}}<br>{what} %{{x}}<br>%{{z:,}} {counted}<extra></extra>",
    }
    return _with_new_users(figure([trace], _categories(what, held["classes"]), _clients_axis(held), legend=False), held)


def spread_chart(held: dict[str, Any]) -> Plot:
    """Draw a dot at each client's mean target, and a line from its first to its last decile."""
    means = held["mean"]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": means,
        "y": _who(held),
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, high - mean) for mean, high in zip(means, held["high"], strict=True)],
            "arrayminus": [max(0.0, mean - low) for mean, low in zip(means, held["low"], strict=True)],
            "color": EXISTING,
            "thickness": 1.2,
            "width": 0,
        },
        "customdata": list(zip(held["low"], held["high"], strict=True)),
        "marker": {"color": EXISTING, "size": 7 if len(means) <= LINES else 4},
        "hovertemplate": "client %{y}<br>mean %{x:.4g}<br>80 % from %{customdata[0]:.4g} to %{customdata[1]:.4g}"
        "<extra></extra>",
    }
    return _with_new_users(figure([trace], {"title": _title("target")}, _clients_axis(held), legend=False), held)


def _with_new_users(drawn: Plot, held: dict[str, Any]) -> Plot:
    """Add a line between the existing users and the new users below them."""
    existing = held["is_new"].count(False)
    if 0 < existing < len(held["clients"]):
        place = {"xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": existing - 0.5, "y1": existing - 0.5}
        drawn["layout"]["shapes"] = [{"type": "line", **place, "line": {"color": ORANGE, "width": 2, "dash": "dot"}}]
    return drawn


def _who(held: dict[str, Any]) -> list[str]:
    pairs = zip(_shown(held["clients"]), held["is_new"], strict=True)
    return [name + (" · new" if is_new else "") for name, is_new in pairs]


def _clients_axis(held: dict[str, Any]) -> Plot:
    few = len(held["clients"]) <= LINES
    ticks = {"dtick": 1, "tickfont": {"size": 10}} if few else {"showticklabels": False, "ticks": ""}
    return {"type": "category", "autorange": "reversed", "showgrid": False, "title": _title("clients"), **ticks}


def _categories(what: str, names: list[str]) -> Plot:
    """Return a category axis. Long names get few tick labels, or none: the pointer shows them on hovering."""
    longest = max(map(len, names))
    ticks: Plot = {"nticks": 8} if len(names) > 12 and longest > 6 else {}
    if len(names) > 12 and longest > LONG:
        ticks = {"showticklabels": False}
    return {"type": "category", "title": _title(what), **ticks}


def _title(text: str) -> Plot:
    return {"text": text, "font": {"size": 13}}


def _shown(names: list[str]) -> list[str]:
    """Shorten long names unless two of them would become equal, and escape them, as Plotly interprets HTML tags."""
    short = [name if len(name) <= LONG else f"{name[: LONG // 2]}…{name[-LONG // 2 + 1 :]}" for name in names]
    kept = short if len(set(short)) == len(set(names)) else names
    return [escape(name, quote=False) for name in kept]
