from dataclasses import replace

from page_inputs import CLIENTS, HISTORY, RECIPE, client, existing, summary
from parsed_page import Parsed

from coterie.measure.cost import Cost
from coterie.measure.protocols import AFTER, AS_IS, Existing, New, Statistics
from coterie.report.page import page
from coterie.report.units import DASH


def test_names_from_users_are_text_and_never_markup() -> None:
    evil = "</script><script>alert('1')</script><b>&amp;\""
    recipe = {"data": {"name": evil}, "method": {"name": evil}}
    rows = [{**client(evil), "classes": evil}, client("d", "new")]
    text = page(evil, recipe, summary(method=evil, engine=evil, protocol=evil), HISTORY, rows)
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.tags].count("script") == 5, "three figures, plotly, and what draws them"
    assert [tag for tag, _ in parsed.tags].count("b") == len(parsed.cards)
    assert parsed.text.count(evil) == 6, "title, heading, method, data set, engine, protocol"
    assert "<script>alert" not in text
    (hover,) = parsed.trace("clients", AS_IS.title)["customdata"]
    assert "&lt;script&gt;" in hover
    assert "<script" not in hover


def test_no_rounds() -> None:
    nobody = replace(existing(), participants=Statistics())
    parsed = Parsed(page("r", RECIPE, summary(rounds=0, existing=nobody, cost=Cost()), [], CLIENTS))
    assert list(parsed.figures) == ["clients"]
    assert parsed.text.count("There is nothing to show.") == 2
    assert set(parsed.row("participants").values()) == {DASH}
    assert list(parsed.row("download").values()) == ["0 B", DASH, DASH]


def test_no_new_users() -> None:
    history = [replace(record, eval=replace(record.eval, new=New())) for record in HISTORY]
    parsed = Parsed(page("r", RECIPE, summary(new=New()), history, CLIENTS[:3]))
    assert set(parsed.row("new, before").values()) == set(parsed.row("new, after").values()) == {DASH}
    assert DASH in parsed.cards[2]
    assert "none in this run" in parsed.cards[3]
    assert "3 clients · 2 rounds" in parsed.text
    assert AFTER.title not in [trace["name"] for trace in parsed.figures["accuracy"]["data"]]


def test_clients_without_test_examples_and_rounds_without_loss() -> None:
    nan = float("nan")
    history = [replace(HISTORY[0], train_loss=None), replace(HISTORY[1], train_loss=nan)]
    parsed = Parsed(page("r", RECIPE, summary(train_loss=nan), history, [client("a", accuracy=nan, adapted=nan)]))
    assert "clients" not in parsed.figures
    assert "Not shown: 1 client without test examples." in parsed.text
    assert [trace["name"] for trace in parsed.figures["loss"]["data"]] == ["all existing users"]


def test_nothing_at_all() -> None:
    assert Parsed(page("r", {}, summary(existing=Existing(), new=New()), [], [])).figures == {}
