"""Charts as SVG: what is drawn where, and that text stays inside the drawing."""

import xml.etree.ElementTree as ET

import pytest

from coterie.report.looks import PALETTE
from coterie.report.panels import Bars, Line, Panel, drawn_points, look
from coterie.report.svg import COLUMN, HEIGHT, LEFT, LETTER, RIGHT, SIZE, WIDTH, scale, svg, wrapped

SVG = "{http://www.w3.org/2000/svg}"


def panel(*lines, logarithmic=False, title="digits"):
    return Panel(title, "accuracy (%)", lines, logarithmic=logarithmic)


def drawn(rows, notes=()):
    return ET.fromstring(svg("a figure", rows, notes))


def curves(root):
    """Points of the curves; those of the legend, which come first, have the width of its samples."""
    found = [
        [tuple(map(float, p.split(","))) for p in each.get("points").split()] for each in root.iter(f"{SVG}polyline")
    ]
    return [points for points in found if not (len(points) == 2 and points[1][0] - points[0][0] == 26)]


def texts(root):
    return [each.text for each in root.iter(f"{SVG}text")]


def test_points_are_where_the_axes_say():
    root = drawn([[panel(Line("pflego", [0, 50, 200], [0, 100, 50], 0))]])
    (points,) = curves(root)
    wide = COLUMN - LEFT - RIGHT
    across = [round(x - LEFT, 1) for x, _ in points]
    assert across == [0, wide / 4, wide]
    up = [points[0][1] - y for _, y in points]
    assert up == pytest.approx([0, HEIGHT, HEIGHT / 2])
    assert [text for text in texts(root) if text.isdigit()] == [
        "0",
        "25",
        "50",
        "75",
        "100",
        "0",
        "50",
        "100",
        "150",
        "200",
    ]


def test_a_logarithmic_axis_has_powers_at_equal_distances_and_omits_what_it_cannot_show():
    root = drawn([[panel(Line("a", [0, 1, 2, 3, 4, 5], [100, 1, 0, None, float("nan"), 0.01], 0), logarithmic=True)]])
    (points,) = curves(root)
    assert len(points) == 3
    assert points[1][1] - points[0][1] == pytest.approx(points[2][1] - points[1][1], abs=0.11)
    assert {"0.01", "0.1", "1", "10", "100"} <= set(texts(root))


def test_panels_of_a_row_stand_side_by_side_and_share_their_title():
    root = drawn([[panel(Line("a", [0, 1], [0, 1], 0)), panel(Line("a", [0, 1], [0, 1], 0))]] * 2)
    assert texts(root).count("digits") == 2
    assert texts(root).count("a") == 1  # the legend
    starts = [points[0] for points in curves(root)]
    assert [x for x, _ in starts] == [LEFT, COLUMN + LEFT] * 2
    assert starts[0][1] == starts[1][1] < starts[2][1] == starts[3][1]


def test_each_row_has_a_legend_of_its_own_if_curves_of_different_rows_look_the_same():
    one, other = (panel(Line(name, [0, 1], [0, 1], 0)) for name in "ab")
    root = drawn([[one, one], [other, other]])
    places = {each.text: float(each.get("y")) for each in root.iter(f"{SVG}text") if each.text in "ab"}
    starts = [points[0][1] for points in curves(root)]
    assert texts(root).count("a") == texts(root).count("b") == 1
    assert places["a"] < starts[0] < places["b"] < starts[2]
    again = drawn([[one], [panel(Line("a", [0, 1], [0, 1], 1))]])  # a name with two looks
    assert texts(again).count("a") == 2


def test_text_stays_inside_the_drawing():
    names = [f"method number {n}" for n in range(9)]
    lines = [Line(name, [0, 1e6], [1e-9, 1e3], *look(n)) for n, name in enumerate(names)]
    root = drawn([[panel(*lines, logarithmic=True, title="a long title " * 8)] * 2], ["a long sentence " * 20])
    height = float(root.get("viewBox").split()[3])
    for each in root.iter(f"{SVG}text"):
        start, wide = float(each.get("x")), LETTER * SIZE * len(each.text)
        start -= {"end": wide, "middle": wide / 2}.get(each.get("text-anchor"), 0)
        assert start >= -8
        assert start + wide <= WIDTH + 8 + 1
        assert float(each.get("y")) < height - 8


def test_names_are_escaped_and_what_is_not_listed_is_not_in_the_legend():
    root = drawn([[panel(Line("<a> & b", [0, 1], [0, 1], 0), Line("hidden", [0, 1], [1, 0], 1, listed=False))]])
    assert "<a> & b" in texts(root)
    assert "hidden" not in texts(root)
    assert len(curves(root)) == 2


def test_bars_start_at_zero_and_have_their_names_and_values():
    bars = Bars("pubmed, costs", "bytes", ["fedavg", "fedem", "none"], [1_000_000, 4_000_000, 0], "B", "A caption.")
    root = drawn([[bars, bars]])
    wide = [(float(each.get("x")), float(each.get("width"))) for each in root.iter(f"{SVG}rect")][1:]
    (start, longest) = wide[1]
    assert wide[:3] == [(start, pytest.approx(longest / 4, abs=0.1)), (start, longest), (start, 0)]
    assert [(x - COLUMN, width) for x, width in wide[3:]] == wide[:3]
    shown = texts(root)
    assert shown.count("pubmed, costs") == 1
    assert [text for text in shown if text[0].isdigit()] == ["1 MB", "4 MB", "0 B"] * 2
    assert shown[-1] == "A caption."


def test_bars_without_names_and_with_long_ones_stay_inside_the_drawing():
    drawn([[Bars("a", "bytes", [], [])]])
    root = drawn([[Bars("a", "bytes", ["per-fedavg, again"], [999_000_000], "B")] * 2])
    for each in root.iter(f"{SVG}text"):
        start, wide = float(each.get("x")), LETTER * SIZE * len(each.text)
        start -= {"end": wide}.get(each.get("text-anchor"), 0)
        assert -8 <= start <= start + wide <= WIDTH + 8


def test_captions_are_shown_once_and_before_the_notes():
    captioned = panel(Line("a", [0, 1], [0, 1], 0))._replace(caption="A caption.")
    assert texts(drawn([[captioned, captioned]], ["A note."]))[-2:] == ["A caption.", "A note."]


def test_many_curves_look_different():
    looks = [look(n) for n in range(3 * len(PALETTE))]
    assert len(set(looks)) == len(looks)


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    rounds = list(range(5000))
    (points,) = curves(drawn([[panel(Line("a", rounds, rounds, 0))]]))
    assert len(points) <= 241
    assert points[0][0] == LEFT
    assert points[-1][0] == pytest.approx(LEFT + (COLUMN - LEFT - RIGHT) * 4999 / 6000, abs=0.1)


def test_a_panel_without_points_and_a_curve_that_is_constant():
    assert "no curves" in texts(drawn([[panel(Line("a", [], [], 0))]]))
    for value in (0.0, 3.0, -2.0):
        (points,) = curves(drawn([[panel(Line("a", [1, 1], [value, value], 0))]]))
        assert len(points) == 2


def test_the_drawing_follows_dark_mode_and_needs_nothing_else():
    text = svg("a figure", [[panel(Line("a", [0, 1], [0, 1], 0))]])
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_linear_axes_end_at_round_values():
    found = scale([3.2, 96.0], 100)
    assert (found.low, found.high) == (0, 100)
    assert found.ticks() == [0, 25, 50, 75, 100]


def test_wrapped():
    assert wrapped("aa bb cc", 5 * LETTER * SIZE) == ["aa bb", "cc"]
    assert wrapped("unbreakable", 1) == ["unbreakable"]


def test_drawn_points():
    line = Line("a", [1, 2, 3], [None, -1.0, 2.0], 0)
    assert drawn_points(line, logarithmic=False) == [(2, -1.0), (3, 2.0)]
    assert drawn_points(line, logarithmic=True) == [(3, 2.0)]
