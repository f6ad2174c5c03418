"""Charts with several curves or with bars as an SVG file.

The file needs no other program or font, is a few kilobytes large, follows the reader's dark mode, and is laid out for
two columns of 300 units, so that its text can still be read where it is shown 400 pixels wide.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from coterie.report.looks import PALETTE
from coterie.report.panels import FEW, Bars, Drawing, Line, Panel, drawn_points
from coterie.report.units import scaled

WIDTH, COLUMN, SIZE, LEADING = 600, 300, 15, 20
"""Width of the drawing and of a column, size of the type, and distance between lines of text."""
LEFT, RIGHT, HEIGHT, BELOW = 54, 14, 168, 44
"""Room for the numbers left of a plot and for half a number right of it, its height, and the room below it."""
VALUES = 66
"""Room for the values right of bars."""
LETTER = 0.55
"""Mean width of a letter, relative to the size of the type."""
MOST = 240
"""Largest number of points that are drawn of a curve, about one per unit of its plot."""
STROKES = {"solid": "", "dash": ' stroke-dasharray="7 4"', "dot": ' stroke-dasharray="2 3"'}
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
STYLE = """<style>
.ground { fill: #fff; } .ink { fill: #1b2028; } .soft { fill: #5b6470; } .grid { stroke: #7d8590; stroke-opacity: .28; }
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
@media (prefers-color-scheme: dark) { .ground { fill: #171a20; } .ink { fill: #e8ebef; } .soft { fill: #9aa3af; } }
</style>"""


class Scale(NamedTuple):
    """An axis: how values become distances from its start."""

    low: float
    high: float
    length: float
    logarithmic: bool

    def place(self, value: float) -> float:
        """Return the distance of a value from the start of the axis."""
        low, high, value = (math.log10(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return self.length * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Return about four round values."""
        if self.logarithmic:
            return _powers(self.low, self.high)
        step = _round_step((self.high - self.low) / 4)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [n * step for n in range(first, last + 1)]


def scale(values: Sequence[float], length: float, logarithmic: bool = False) -> Scale:
    """Return an axis that shows all values. A linear one ends at round values."""
    low, high = min(values), max(values)
    if logarithmic:
        return Scale(low / 1.1, high * 1.1, length, True)
    step = _round_step((high - low) / 4 or abs(high) / 4 or 1.0)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Scale(step * first, step * max(last, first + 1), length, False)


def svg(title: str, rows: Sequence[Sequence[Drawing]], notes: Sequence[str] = ()) -> str:
    """Return a drawing of the panels.

    There is one legend above them, or one for each row if a name and a look do not belong together in all rows.

    Args:
        title: what the drawing shows, for people who cannot see it.
        rows: panels that stand side by side, at most two in a line. Equal titles within a row are shown once.
        notes: sentences to show below, after the captions of the panels.
    """
    names = [_names(row) for row in rows]
    looks = {(name, line.color, line.dash) for own in names for name, line in own.items()}
    single = len(looks) == len({name for name, *_ in looks}) == len({(color, dash) for _, color, dash in looks})
    parts, top = _legend({name: line for own in names for name, line in own.items()} if single else {}, 0.0)
    for row, own in zip(rows, names, strict=True):
        drawn, top = _legend({} if single else own, top + 12)
        parts += drawn
        for n in range(0, len(row), 2):
            drawn, top = _pair(row[n : n + 2], top + 12 * (n > 0 or not single))
            parts += drawn
    captions = [panel.caption for row in rows for panel in row if panel.caption]
    for sentence in [*dict.fromkeys(captions), *notes]:
        top += 6
        for text in wrapped(sentence, WIDTH):
            top += LEADING
            parts.append(_text(0, top - 5, text, "soft"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {WIDTH + 16} {top + 16:g}"'
    ground = f'<rect class="ground" x="-8" y="-8" width="{WIDTH + 16}" height="{top + 16:g}" rx="8"/>'
    name = escape(title)
    body = "\n".join([STYLE, ground, *parts])
    return f'{head} font-size="{SIZE}" role="img" aria-label="{name}">\n<title>{name}</title>\n{body}\n</svg>\n'


def wrapped(text: str, width: float) -> list[str]:
    """Break a text into lines of at most this width."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and _width(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _names(row: Sequence[Drawing]) -> dict[str, Line]:
    """Return the listed curves of a row by name."""
    return {line.name: line for panel in row if isinstance(panel, Panel) for line in panel.lines if line.listed}


def _legend(lines: Mapping[str, Line], top: float) -> tuple[list[str], float]:
    """Draw curves with their names. Returns the parts, and where they end."""
    parts, x, y = [], 0.0, top
    for name, line in lines.items():
        wide = 34 + _width(name) + 18
        if x and x + wide - 18 > WIDTH:
            x, y = 0.0, y + LEADING + 2
        parts.append(_path(line, [(x, y + 10), (x + 26, y + 10)]))
        parts.append(_text(x + 34, y + 15, name, "ink"))
        x += wide
    return parts, y + LEADING if lines else top


def _pair(panels: Sequence[Drawing], top: float) -> tuple[list[str], float]:
    """Draw at most two panels side by side. Returns the parts, and where they end."""
    parts: list[str] = []
    room = COLUMN if len({panel.title for panel in panels}) == len(panels) > 1 else WIDTH
    titles = [wrapped(panel.title, room / 1.1) for panel in panels]
    below = top + LEADING * max(map(len, titles))
    height = max(map(_height, panels))
    for n, panel in enumerate(panels):
        if not n or panel.title != panels[0].title:
            for k, text in enumerate(titles[n], 1):
                parts.append(_text(n * COLUMN, top + k * LEADING - 5, text, "ink", ' font-weight="600"'))
        parts += _bars(panel, n * COLUMN, below) if isinstance(panel, Bars) else _panel(panel, n * COLUMN, below)
    return parts, below + LEADING + 8 + height


def _height(panel: Drawing) -> float:
    """Return the height of a plot, with the numbers below it."""
    return LEADING * len(panel.names) if isinstance(panel, Bars) else HEIGHT + BELOW


def _bars(bars: Bars, left: float, top: float) -> list[str]:
    """Draw bars without their title, each with its name and its value, which make ticks unnecessary."""
    parts = [_text(left, top + LEADING - 5, bars.axis, "soft")]
    x0 = left + 8 + max(map(_width, bars.names), default=0.0)
    longest = left + COLUMN - VALUES - x0
    for n, (name, value) in enumerate(zip(bars.names, bars.values, strict=True)):
        y = top + LEADING + 8 + n * LEADING
        wide = longest * value / (max(bars.values) or 1.0)
        parts.append(_text(x0 - 8, y + 15, name, "ink", ' text-anchor="end"'))
        parts.append(f'<rect x="{x0:.1f}" y="{y + 3:.1f}" width="{wide:.1f}" height="14" fill="{PALETTE[0]}"/>')
        parts.append(_text(x0 + wide + 5, y + 15, scaled(value, bars.unit), "soft"))
    return parts


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    """Draw a panel without its title."""
    parts = [_text(left, top + LEADING - 5, panel.axis, "soft")]
    curves = [(line, _thinned(drawn_points(line, panel.logarithmic))) for line in panel.lines]
    points = [point for _, drawn in curves for point in drawn]
    start, end = top + LEADING + 8, top + LEADING + 8 + HEIGHT
    if not points:
        return [*parts, _text(left + LEFT, start + HEIGHT / 2, "no curves", "soft")]
    across = scale([x for x, _ in points], COLUMN - LEFT - RIGHT)
    up = scale([y for _, y in points], HEIGHT, panel.logarithmic)
    x0, x1 = left + LEFT, left + COLUMN - RIGHT
    for value in up.ticks():
        y = end - up.place(value)
        parts.append(f'<path class="grid" d="M{x0:.1f} {y:.1f}H{x1:.1f}"/>')
        parts.append(_text(x0 - 8, y + 5, _number(value, panel.logarithmic), "soft", ' text-anchor="end"'))
    for value in across.ticks():
        x = x0 + across.place(value)
        parts.append(_text(x, end + LEADING, _number(value, False), "soft", ' text-anchor="middle"'))
    parts.append(_text((x0 + x1) / 2, end + 2 * LEADING, panel.across, "soft", ' text-anchor="middle"'))
    for line, drawn in curves:
        places = [(x0 + across.place(x), end - up.place(y)) for x, y in drawn]
        parts.append(_path(line, places, dotted=len(drawn) <= FEW))
    return parts


def _path(line: Line, points: Sequence[tuple[float, float]], dotted: bool = False) -> str:
    """Draw a curve through points in the units of the drawing, with a dot at each point if asked for."""
    if not points:
        return ""
    color, places = PALETTE[line.color], " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in points)
    stroke = f'stroke="{color}" stroke-width="2" stroke-linejoin="round"{STROKES[line.dash]}'
    return f'<polyline points="{places}" fill="none" {stroke}/>' + dots * dotted


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most about `MOST` of the points, evenly, with the last one."""
    every = math.ceil(len(points) / MOST)
    return points if every < 2 else [*points[:-1:every], points[-1]]


def _text(x: float, y: float, text: str, kind: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def _width(text: str) -> float:
    return LETTER * SIZE * len(text)


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is at least `step`."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= step * (1 - 1e-9))


def _powers(low: float, high: float) -> list[float]:
    """Return powers of ten in a range, at most six; also 2 and 5 times them if there are fewer than three."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    if last - first >= 2:
        return [10.0**n for n in range(first, last + 1, math.ceil((last - first + 1) / 6))]
    fine = [m * 10.0**n for n in range(first - 1, last + 1) for m in (1, 2, 5)]
    return [value for value in fine if low <= value <= high]


def _number(value: float, logarithmic: bool) -> str:
    if logarithmic and not 0.001 <= value <= 1000:
        power = math.floor(math.log10(value) + 1e-9)
        times = round(value / 10.0**power)
        return ("" if times == 1 else f"{times}·") + "10" + str(power).translate(SUPERSCRIPTS)
    return f"{round(value, 10):,g}" if abs(value) < 1e5 else f"{value:.0e}"
