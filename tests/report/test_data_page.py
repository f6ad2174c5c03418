import tomllib
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from parsed_page import Parsed
from plotly.offline import get_plotlyjs

from coterie.data.federation import Federation
from coterie.report import census
from coterie.report.data_page import data_page
from coterie.report.units import DASH
from data.sets.held import examples, federation, holding

RECIPE: dict[str, Any] = {
    "data": {"name": "toy"},
    "partition": {"name": "classes", "clients": 4},
    "run": {"seed": 5},
}
COUNTS = [[0, 30, 2], [7, 1, 0], [0, 0, 1], [4, 4, 9]]
CLASSES = examples([0, 0, 1, 2, 2, 2], [1, 2], ("ant", "bee", "cow"))


def shown(fed: Federation, data: Any = CLASSES) -> Parsed:
    return Parsed(data_page(RECIPE, census.of_examples(data), census.of_clients(fed)))


@pytest.fixture(scope="module")
def usual() -> Parsed:
    return shown(holding(COUNTS, new=[1], labels=("ant", "bee", "cow")))


def test_the_map_has_every_client_and_class_in_order(usual: Parsed) -> None:
    (trace,) = usual.figures["held"]["data"]
    assert trace["y"] == ["c0", "c3", "c2", "c1 · new"]
    assert trace["x"] == ["ant", "bee", "cow"]
    assert trace["z"] == [[0, 30, 2], [4, 4, 9], [0, 0, 1], [7, 1, 0]]
    assert trace["hovertemplate"].startswith("client %{y}<br>class %{x}<br>%{z:,} training examples")
    assert usual.figures["held"]["layout"]["yaxis"]["autorange"] == "reversed"
    (line,) = usual.figures["held"]["layout"]["shapes"]
    assert line["y0"] == line["y1"] == 2.5, "between the third row and the fourth"
    assert "all 4 clients, ordered by main class, new users last, below the dotted line." in usual.text


def test_more_is_never_paler_and_little_is_seen(usual: Parsed) -> None:
    scale = usual.figures["held"]["data"][0]["colorscale"]
    places = [place for place, _ in scale]
    opacities = [float(color.rpartition(",")[2].rstrip(")")) for _, color in scale]
    assert places == sorted(places)
    assert opacities == sorted(opacities)
    assert (places[0], opacities[0], places[-1], opacities[-1]) == (0, 0, 1, 1)
    assert np.interp(1 / 30, places, opacities) > 0.1
    assert np.interp(0.25, places, opacities) == pytest.approx(0.14 + 0.86 * 0.5)
    assert {color.rpartition(",")[0] for _, color in scale} == {"rgba(30,100,242"}, "one hue"


def test_totals_are_those_of_the_data(usual: Parsed) -> None:
    assert usual.trace("totals", "train")["y"] == [2, 1, 3]
    assert usual.trace("totals", "test")["y"] == [0, 1, 1]
    assert usual.trace("totals", "test")["x"] == ["ant", "bee", "cow"]
    assert ["examples", "6", "2", "2", "3", DASH] in usual.rows


def test_sizes_and_numbers_of_classes_are_those_of_the_clients(usual: Parsed) -> None:
    existing, new = usual.trace("sizes", "existing"), usual.trace("sizes", "new users")
    assert dict(zip(existing["x"], existing["y"], strict=True)) == {
        **{str(size): 0 for size in range(1, 33)},
        "1": 1,
        "17": 1,
        "32": 1,
    }
    assert [name for name, number in zip(new["x"], new["y"], strict=True) if number] == ["8"]
    assert usual.trace("variety", "existing")["y"] == [3]
    assert ["train examples", "1", "12.5", "32"] in usual.rows
    assert "partition classes · 3 clients and 1 new user · seed 5" in usual.text


def test_the_recipe_makes_the_same_clients(usual: Parsed) -> None:
    assert tomllib.loads(usual.text[usual.text.index("[data]") :]) == RECIPE


def test_plotly_accepts_the_figures_and_nothing_is_loaded_from_elsewhere(usual: Parsed) -> None:
    assert list(usual.figures) == ["totals", "held", "sizes", "variety"]
    for figure in usual.figures.values():
        go.Figure(figure)
    assert not [a for _, a in usual.tags if a.keys() & {"src", "href", "srcset", "action"}]
    policies = [a["content"] for _, a in usual.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert str(policies[0]).startswith("default-src 'none';")


def test_a_page_of_ten_thousand_clients_stays_small() -> None:
    rng = np.random.default_rng(0)
    sizes = 62 * 10_000
    y, owner = rng.integers(62, size=sizes), np.repeat(np.arange(10_000), 62)
    fed = federation(y, np.split(np.arange(sizes), 10_000), tuple(range(62)), new=range(9_000, 10_000))
    data = examples(y, y[:100], fed.labels)
    text = data_page(RECIPE, census.of_examples(data), census.of_clients(fed))
    assert len(text) - len(get_plotlyjs()) < 500_000
    parsed = Parsed(text)
    (trace,) = parsed.figures["held"]["data"]
    assert "every 10th of 10,000 clients, ordered by main class, new users last" in parsed.text
    assert len(trace["y"]) == 1000
    assert trace["z"][0] == np.bincount(y[owner == int(trace["y"][0][1:])], minlength=62).tolist()
    assert sum(parsed.trace("sizes", "existing")["y"]) == 9_000


def test_many_classes_are_put_together() -> None:
    y = np.arange(1300)
    data = examples(y, y[:700], tuple(range(1300)))
    parsed = shown(federation(y, [y[:650], y[650:]], data.labels), data)
    (trace,) = parsed.figures["held"]["data"]
    assert trace["x"][:2] == ["0 to 2", "3 to 5"]
    assert np.array(trace["z"]).sum(axis=1).tolist() == [650, 650]
    assert parsed.trace("totals", "test")["y"][232:235] == [3, 1, 0]
    assert "Each bar stands for 3 classes" in parsed.text
    assert "3 classes per column, all 2 clients" in parsed.text


def test_targets_have_a_spread_instead_of_a_map() -> None:
    y = np.concatenate([np.arange(11.0), [20.0, 30.0]])
    parsed = shown(federation(y, [np.arange(11), [11, 12]], ()), examples(y, y[:1], ()))
    assert list(parsed.figures) == ["totals", "held", "sizes"]
    (trace,) = parsed.figures["held"]["data"]
    assert trace["x"] == [5, 25]
    assert trace["error_x"]["array"] == trace["error_x"]["arrayminus"] == pytest.approx([4, 4])
    assert trace["customdata"] == [pytest.approx([1, 9]), pytest.approx([21, 29])]
    assert parsed.trace("totals", "train")["y"] == np.histogram(y, 40)[0].tolist()
    assert parsed.trace("totals", "test")["y"] == [1] + [0] * 39
    for figure in parsed.figures.values():
        go.Figure(figure)


def test_names_from_users_are_text_and_never_markup() -> None:
    evil = "</script><script>alert('1')</script><b>"
    fed = holding([[1, 0], [0, 1]], ids=(evil, "b"), labels=(evil, "y"))
    data = census.of_examples(examples([0, 1], [1], (evil, "y")))
    recipe = {**RECIPE, "data": {"name": evil}, "partition": {"name": evil}}
    text = data_page(recipe, data, census.of_clients(fed))
    assert "class %{x}\\u003cbr>" in text, "no tag at all within a script"
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.tags].count("script") == 6, "four figures, plotly, and what draws them"
    assert not [tag for tag, _ in parsed.tags if tag == "b"]
    (trace,) = parsed.figures["held"]["data"]
    assert "<" not in "".join(trace["x"] + trace["y"])
    problem = Parsed(data_page(recipe, data, None, evil))
    assert f"The examples could not be distributed to clients: {evil}" in problem.text


def test_long_names_are_cut_unless_they_become_equal() -> None:
    long = ["the same beginning, " + word + ", the same end" for word in ("one", "two")]
    parsed = shown(holding([[1, 0], [0, 1]], ids=("a" * 30 + "z", "b"), labels=tuple(long)))
    (trace,) = parsed.figures["held"]["data"]
    assert trace["x"] == long
    assert trace["y"] == ["a" * 12 + "…" + "a" * 10 + "z", "b"]
