"""Bars of Figure 1 of FedDecay: bytes and operations of the best run of each method."""

import json

from coterie.lab.papers.comparison import Row
from coterie.lab.papers.cost_bars import cost_bars
from coterie.lab.papers.feddecay import PubMed, Tuned
from coterie.lab.papers.measured import Measured
from coterie.lab.papers.users import Picked
from coterie.report.lab_page import lab_page


def row(method, validation, costs, **at):
    runs = [
        Measured(None, None, None, None, None, 1.0, 1.0, picked=Picked(1, validation, None, None, None, None, *each))
        for each in costs
    ]
    return Row({**at, "method": method}, "adapted", None, None, runs, "", seeds=range(len(runs)))


def test_a_method_has_the_costs_of_its_best_setting_as_means_over_seeds():
    rows = [
        row("feddecay", 79.0, [(1, 1)], data="sst2", counts="step"),
        row("feddecay", 80.0, [(10, 100), (30, 500)], data="sst2", counts="epoch"),
        row("feddecay", 50.0, [(7, 70)], data="pubmed", counts="step"),
        row("fedavg", 60.0, [(4, 40)], data="sst2", counts="none"),
        row("fedem", 60.0, [], data="sst2", counts="none"),
        row("fedem", 60.0, [], data="femnist", counts="none"),
    ]
    sst2, pubmed = cost_bars(rows)
    assert [(bars.title, bars.names, bars.values, bars.unit) for bars in sst2] == [
        ("sst2, costs", ["feddecay", "fedavg"], [20, 4], "B"),
        ("sst2, costs", ["feddecay", "fedavg"], [300, 40], ""),
    ]
    assert [bars.values for bars in pubmed] == [[7], [70]]
    assert Tuned().figure(rows) == [sst2, pubmed]
    assert cost_bars([row("fedavg", 60.0, [])]) == []


def test_an_experiment_on_one_data_set_names_it():
    ((down, _),) = PubMed().figure([row("fedavg", 60.0, [(4, 40)])])
    assert down.title == "pubmed, costs"


def test_the_page_has_a_bar_for_each_method_from_top_to_bottom():
    page = lab_page("costs", [], [], cost_bars([row("fedavg", 60.0, [(4e6, 4e9)]), row("fedem", 60.0, [(8e6, 9e9)])]))
    plot = json.loads(page.partition('id="panel-0-0-figure">')[2].partition("</script>")[0])
    (trace,) = plot["data"]
    assert (trace["type"], trace["orientation"]) == ("bar", "h")
    assert (trace["y"], trace["x"], trace["text"]) == (["fedavg", "fedem"], [4e6, 8e6], ["4 MB", "8 MB"])
    assert plot["layout"]["yaxis"]["autorange"] == "reversed"
