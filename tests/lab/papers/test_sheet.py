"""The section [experiment] of a recipe: what it makes of the recipe, and what a user may get wrong in it."""

import copy
import tomllib
from pathlib import Path

import pytest

from coterie.errors import UserError
from coterie.lab.papers.sheet import Sheet
from coterie.methods import PFLEGO, FedAvg
from coterie.recipe import Recipe, changed, read

TINY = Path(__file__).parents[2] / "tiny.toml"


@pytest.fixture
def tree():
    return tomllib.loads(TINY.read_text())


def test_a_run_has_no_use_for_it(tree):
    plain = {section: table for section, table in tree.items() if section != "experiment"}
    assert Recipe.parse(tree) == Recipe.parse(plain) == read(TINY)
    assert "experiment" not in read(TINY).as_dict()


def test_changes_for_a_run_do_not_have_to_fit_it(tree):
    tree["experiment"]["methods"]["fedper"]["model"] = {"hidden": [4]}
    assert read(tree, ["model.name=logreg"]).as_dict()["model"]["name"] == "logreg"


def test_a_methods_recipe(tree):
    sheet = Sheet.of(tree)
    own = Recipe.parse(sheet.tables(tree, "pflego"))
    assert own.method == PFLEGO(tau=2, beta=0.1, rho=0.01)  # carried over from [method]
    assert own.model.labels == "auto"
    other = Recipe.parse(sheet.tables(tree, "fedavg"))
    assert other.method == FedAvg(tau=2, eta=0.2)
    assert other.model.labels == "local"
    assert other.as_dict()["model"]["hidden"] == [8]  # the rest of the section stays
    small = Recipe.parse(changed(sheet.tables(tree, "fedavg"), sheet.small))
    assert (small.run.rounds, small.run.eval_last, small.run.clients_per_round) == (4, 2, 4)


def test_its_figures(tree):
    sheet = Sheet.of(tree)
    assert sheet.published == {"pflego": [80.0, 3.0], "fedavg": [70.0, 4.0]}
    assert sheet.seconds == {"pflego": 2.0, "fedavg": 5.0}
    assert sheet.protocol == "participants"


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["titel"], "x", ["experiment.titel", "'title'"]),
        (["protocol"], "test", ["experiment.protocol = 'test'"]),
        (["published", "pflego"], [80.0], ["experiment.published.pflego = [80.0]", "at least 2"]),
        (["published", "pflego"], [80.0, "3"], ["experiment.published.pflego.1 = '3'"]),
        (["published", "pflgo"], [80.0, 3.0], ["experiment.published.pflgo", "'pflego'"]),
        (["seconds", "fedrep"], 3.0, ["experiment.seconds.fedrep"]),
        (["methods", "fedavgg"], {}, ["experiment.methods.fedavgg", "'fedavg'"]),
        (["methods", "fedavg", "method", "etta"], 3, ["experiment.methods.fedavg: unknown key method.etta", "'eta'"]),
        (["methods", "fedavg", "modle"], {}, ["experiment.methods.fedavg: unknown section [modle]"]),
        (["methods", "fedavg", "model", "labels"], "mine", ["experiment.methods.fedavg: model.labels = 'mine'"]),
        (["small", "run", "round"], 3, ["experiment.small: unknown key run.round", "'rounds'"]),
    ],
)
def test_a_mistake_is_named(tree, path, value, words):
    tree = copy.deepcopy(tree)
    place = tree["experiment"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(UserError) as caught:
        Sheet.of(tree)
    for word in words:
        assert word in str(caught.value)


def test_it_must_be_a_section(tree):
    with pytest.raises(UserError, match="experiment = 3 must be a section"):
        Sheet.of({**tree, "experiment": 3})
