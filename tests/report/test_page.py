import subprocess
import sys
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from page_inputs import CLIENTS, HISTORY, RECIPE, client, statistics, summary
from parsed_page import Parsed

from coterie.measure.protocols import ADAPTED, AFTER, AS_IS, BEFORE, PARTICIPANTS, Existing, New, Statistics
from coterie.measure.summary import OWN
from coterie.report.looks import LOOKS
from coterie.report.page import page
from coterie.report.strip import side_by_side


@pytest.fixture(scope="module")
def usual() -> Parsed:
    return Parsed(page("a run", RECIPE, summary(), HISTORY, CLIENTS))


def test_statistics_are_in_the_rows_of_their_protocols(usual: Parsed) -> None:
    assert usual.row("new, after") == {
        "n": "–",  # noqa: RUF001
        "mean": "80.00",
        "weighted": "80.10",
        "std": "5.00",
        "stderr": "1.23",
        "bottom decile": "70.00",
        "last ten": "79.80",
    }
    means = {protocol.title: usual.row(protocol.title)["mean"] for protocol in (AS_IS, ADAPTED, PARTICIPANTS, BEFORE)}
    assert list(means.values()) == ["85.00", "90.00", "95.00", "50.00"]


def test_headline_figures(usual: Parsed) -> None:
    words = [card.split() for card in usual.cards]
    assert [" ".join(card[: card.index("±")]) for card in words] == [
        "Existing users as is 85.0",
        "Existing users adapted 90.0",
        "New users before adaptation 50.0",
        "New users after adaptation 80.0",
    ]
    assert " ".join(words[0]).endswith("± 1.2 % bottom decile 75.0 %")


def test_cost_in_all_per_round_and_per_visit(usual: Parsed) -> None:
    assert list(usual.row("download").values()) == ["4 MB", "2 MB", "1 MB"]
    assert list(usual.row("computation").values()) == ["8 GFLOP", "4 GFLOP", "2 GFLOP"]
    assert list(usual.row("body forwards").values()) == ["40", "20", "10"]
    assert list(usual.row("training time").values()) == ["4 s", "2 s", "1 s"]
    assert list(usual.row("evaluation time").values()) == ["6 s", "3 s", "1.5 s"]


def test_says_what_was_run(usual: Parsed) -> None:
    assert "pflego on digits · 3 clients and 1 new user · 2 rounds · seed 7 · engine loop" in usual.text
    assert "On existing.as_is, a sentence." in usual.text
    assert '[method]\nname = "pflego"\ntau = 20\n' in usual.text
    assert ("html", {"lang": "en"}) in usual.tags
    assert "a run · Coterie" in usual.text


def test_curves_are_those_of_the_history(usual: Parsed) -> None:
    assert usual.trace("accuracy", AS_IS.title)["x"] == [1, 2]
    assert usual.trace("accuracy", AS_IS.title)["y"] == pytest.approx([0.65, 0.85])
    assert usual.trace("accuracy", AFTER.title)["y"] == pytest.approx([0.6, 0.8])
    assert usual.trace("accuracy", "existing, as is, on training examples")["y"] == pytest.approx([0.7, 0.96])
    assert usual.trace("loss", "the round's cohort")["y"] == [0.9, 0.5]
    assert usual.trace("loss", "all existing users")["y"] == [0.8, 0.4]


def test_each_client_is_a_dot_that_tells_about_it(usual: Parsed) -> None:
    assert usual.trace("clients", AS_IS.title)["y"] == [0.75, 0.75, 1.0]
    (hover,) = usual.trace("clients", AFTER.title)["customdata"]
    for part in ("client d", "100.00 %", "classes 1 3", "28 training examples", "1 visits"):
        assert part in hover


def test_same_protocol_same_colour(usual: Parsed) -> None:
    for protocol in (AS_IS, ADAPTED, AFTER):
        for figure in ("accuracy", "clients"):
            assert usual.trace(figure, protocol.title)["marker"]["color"] == LOOKS[protocol].color


def test_plotly_accepts_the_figures_and_readers_are_told_what_they_show(usual: Parsed) -> None:
    assert list(usual.figures) == ["accuracy", "loss", "clients"]
    for figure in usual.figures.values():
        go.Figure(figure)
    labels = {str(a["id"]): a.get("aria-label") for tag, a in usual.tags if tag == "div" and a.get("class") == "chart"}
    assert list(labels) == list(usual.figures)
    assert "existing, as is 85.00 ± 1.23 percent" in str(labels["accuracy"])


def test_nothing_is_loaded_from_elsewhere(usual: Parsed) -> None:
    assert not [tag for tag, _ in usual.tags if tag in ("link", "img", "iframe", "object", "embed", "base")]
    assert not [a for _, a in usual.tags if a.keys() & {"src", "href", "srcset", "action"}]
    policies = [a["content"] for _, a in usual.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert str(policies[0]).startswith("default-src 'none';")
    assert "http" not in str(policies[0])


def test_parts_of_the_clients_are_on_the_card_and_in_the_table() -> None:
    def of(mean: float, clients: int) -> Statistics:
        return replace(statistics(mean), clients=clients)

    parts = {"visited": Existing(of(0.834, 54), of(0.94, 54)), "never_visited": Existing(of(0.197, 26), of(0.91, 26))}
    everyone, one = Existing(of(0.627, 80), of(0.93, 80)), New(replace(of(0.5, 1), stderr=None), of(0.8, 1))
    parsed = Parsed(page("r", RECIPE, summary(existing=everyone, new=one, choices=OWN, **parts), HISTORY, CLIENTS))
    card = " ".join(parsed.cards[0].split())
    assert card.endswith("visited (54) 83.4 %never visited (26) 19.7 %")
    assert "50.0 one client" in parsed.cards[2]
    assert parsed.row("\u2003\u2003never visited")["mean"] == "19.70"
    assert "26 of 80 clients were never visited." in parsed.text
    assert "A client chooses among its own classes." in parsed.text
    assert "engine loop · chooses among its own classes" in parsed.text


def test_the_score_on_training_examples_is_on_the_card_and_in_the_table() -> None:
    train = replace(statistics(0.96), clients=80)
    parsed = Parsed(page("r", RECIPE, summary(train_score=train), HISTORY, CLIENTS))
    assert " ".join(parsed.cards[0].split()).endswith("on training examples (80) 96.0 %")
    assert parsed.row("\u2003\u2003on training examples")["mean"] == "96.00"


def test_names_of_classes_with_blanks_stay_apart() -> None:
    for written, shown in (('["Ankle boot", "Bag"]', "classes Ankle boot, Bag"), ("1 3", "classes 1 3")):
        rows = [{**client("a"), "classes": written}]
        parsed = Parsed(page("r", RECIPE, summary(), HISTORY, rows))
        assert shown in parsed.trace("clients", AS_IS.title)["customdata"][0]


def test_restricted_column_only_when_it_differs(usual: Parsed) -> None:
    assert "restricted" not in usual.row("new, before")
    new = New(replace(statistics(0.5), restricted_mean=0.987), statistics(0.8))
    parsed = Parsed(page("r", RECIPE, summary(new=new), HISTORY, CLIENTS))
    assert parsed.row("new, before")["restricted"] == "98.70"
    assert parsed.row("new, after")["restricted"] == "80.00"


@pytest.mark.parametrize(("last", "kind"), [(0.5, None), (0.01, "log"), (0.0, None)])
def test_loss_axis_is_logarithmic_only_beyond_a_decade(last: float, kind: str | None) -> None:
    history = [HISTORY[0], replace(HISTORY[1], train_loss=last)]
    parsed = Parsed(page("r", RECIPE, summary(), history, CLIENTS))
    assert parsed.figures["loss"]["layout"]["yaxis"].get("type") == kind


def test_equal_clients_stand_side_by_side() -> None:
    offsets = side_by_side([1.0] * 500 + [0.2])
    assert len(set(offsets[:500])) == 500
    assert max(map(abs, offsets)) < 0.5
    assert offsets[500] == 0
    assert sum(offsets) == pytest.approx(0, abs=1e-6)


def test_plotly_is_not_loaded_before_a_page_is_made() -> None:
    code = "import sys, coterie.report.page, coterie.report.terminal; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
