"""What a sweep refuses, before any work, and what its space is made of."""

import pytest

from coterie import recipe as recipes
from coterie.errors import UserError
from coterie.lab.sweep.space import OneOf, Range, Space, SweepSettings, read

BASE = {"data": {"name": "digits"}, "method": {"name": "fedavg", "eta": 0.1, "batch_size": 8}}


def base():
    return recipes.read(BASE)


def test_a_space_has_lists_and_ranges():
    space = Space.of({"method": {"eta": [0.1, 1.0], "tau": {"low": 1, "high": 9}}, "run": {"clients_per_round": [3]}})
    assert space.axes == {
        "method.eta": OneOf([0.1, 1.0]),
        "method.tau": Range(1, 9),
        "run.clients_per_round": OneOf([3]),
    }
    assert space.first() == {"method.eta": 0.1, "method.tau": 1, "run.clients_per_round": 3}


def test_a_grid_has_every_combination_once_in_an_order_of_the_seed():
    space = Space.of({"method": {"eta": [0.1, 0.2, 0.3]}, "model": {"hidden": [[10], [20, 20]]}})
    found = space.combinations(0)
    wanted = [{"method.eta": eta, "model.hidden": hidden} for eta in (0.1, 0.2, 0.3) for hidden in ([10], [20, 20])]
    assert len(found) == 6
    assert all(point in found for point in wanted)
    assert found == space.combinations(0) != space.combinations(1)


def test_a_trial_keeps_the_rest_of_the_recipe():
    space = Space.of({"method": {"eta": [0.5]}, "model": {"hidden": [[7]]}})
    made = space.recipe(base(), {"method.eta": 0.5, "model.hidden": [7]}).as_dict()
    plain = base().as_dict()
    assert made["method"] == {**plain["method"], "eta": 0.5}
    assert made["model"] == {**plain["model"], "hidden": [7]}
    assert all(made[section] == plain[section] for section in ("data", "partition", "run", "eval", "engine"))


def test_another_method_takes_its_own_settings():
    space = Space.of({"method": {"name": ["fedavg", "pflego"], "tau": [3, 4]}})
    space.check(base())
    made = space.recipe(base(), {"method.name": "pflego", "method.tau": 4})
    assert made.as_dict()["method"] == {**recipes.read({"method": {"name": "pflego"}}).as_dict()["method"], "tau": 4}


BAD = {
    "nothing": ({}, ["search space is empty", "sweep.space"]),
    "an empty section": ({"method": {}}, ["search space is empty"]),
    "no key": ({"method": [1]}, ["sweep.space.method", "name a key"]),
    "no values": ({"method": {"eta": []}}, ["sweep.space.method.eta", "at least one"]),
    "a value twice": ({"method": {"eta": [0.1, 0.2, 0.1]}}, ["sweep.space.method.eta", "0.1 twice"]),
    "one value": ({"method": {"eta": 0.1}}, ["sweep.space.method.eta", "a list or a range"]),
    "no high": ({"method": {"eta": {"low": 1}}}, ["sweep.space.method.eta", "needs high"]),
    "a misspelt end": ({"method": {"eta": {"low": 1, "high": 2, "lgo": True}}}, ["method.eta.lgo", "low, high, log"]),
    "ends turned round": ({"method": {"eta": {"low": 2.0, "high": 1.0}}}, ["low = 2.0", "below high = 1.0"]),
    "zero on a log scale": ({"method": {"eta": {"low": 0.0, "high": 1.0, "log": True}}}, ["above 0"]),
    "an infinite end": ({"method": {"eta": {"low": 0.1, "high": float("inf")}}}, ["sweep.space.method.eta", "inf"]),
    "a word for an end": ({"method": {"eta": {"low": "a", "high": 1.0}}}, ["sweep.space.method.eta.low", "'a'"]),
    "an unknown key": ({"method": {"eat": [0.1]}}, ["sweep.space.method.eat", "'eta'"]),
    "a value out of range": ({"method": {"eta": [0.1, -1.0]}}, ["sweep.space.method.eta", "-1.0"]),
    "an end out of range": ({"method": {"tau": {"low": 0, "high": 5}}}, ["sweep.space.method.tau", "0"]),
    "other data": ({"partition": {"clients": [10, 20]}}, ["partition.clients", "same examples"]),
    "other seeds": ({"run": {"seed": [0, 1]}}, ["run.seed", "same examples"]),
    "a misspelt section": ({"methd": {"eta": [0.1]}}, ["methd.eta", "method.*"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_in_the_space(case):
    tables, words = BAD[case]
    with pytest.raises(UserError) as told:
        Space.of(tables).check(base())
    for word in words:
        assert word in str(told.value), word


def test_a_range_has_no_grid():
    with pytest.raises(UserError, match=r"method\.eta is a range.*--search tpe"):
        Space.of({"method": {"eta": {"low": 0.1, "high": 1.0}}}).combinations(0)


RECIPE = """
[data]
name = "digits"

[sweep]
search = "tpe"
trials = 5

[sweep.space]
method.beta = { low = 0.1, high = 1.0, log = false }
method.tau = [1, 2]
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.toml").write_text(RECIPE)
    return tmp_path / "mine.toml"


def test_the_section_of_a_recipe(file):
    recipe, settings = read(file, [], {"search": None, "trials": None})
    space = {"method": {"beta": {"low": 0.1, "high": 1.0, "log": False}, "tau": [1, 2]}}
    assert settings == SweepSettings(search="tpe", trials=5, space=space)
    assert recipe.as_dict() == recipes.read({"data": {"name": "digits"}}).as_dict()


def test_changes_and_options_come_on_top(file):
    changes = ["sweep.space.method.beta=[0.3, 0.4]", "sweep.protocol=adapted", "method.tau=9", "sweep.trials=6"]
    recipe, settings = read(file, changes, {"search": "grid", "trials": 7})
    assert settings.space == {"method": {"beta": [0.3, 0.4], "tau": [1, 2]}}
    assert (settings.search, settings.trials, settings.protocol) == ("grid", 7, "adapted")
    assert recipe.as_dict()["method"]["tau"] == 9


def test_what_is_given_no_value_is_left_out(file):
    _, settings = read(file, ["sweep.trials=", "sweep.space.method.tau =", "sweep.space.model.hidden="], {})
    assert settings.trials is None
    assert settings.space == {"method": {"beta": {"low": 0.1, "high": 1.0, "log": False}}}
    assert read(file, ["sweep.trials.x="], {})[1].trials == 5
    with pytest.raises(UserError, match=r"unknown key sweep\.trails \(did you mean 'trials'\?\)"):
        read(file, ["sweep.trails="], {})


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        (["sweep.serach=tpe"], {}, ["sweep.serach", "'search'"]),
        ([], {"search": "random"}, ["sweep.search", "random", "grid"]),
        ([], {"trials": 0}, ["sweep.trials", "0"]),
        (["sweep.protocol=test"], {}, ["sweep.protocol", "test", "as_is"]),
        (["sweep.space.method.beta"], {}, ["sweep.space.method.beta", "sweep.key=value"]),
        (["sweep.=3"], {}, ["sweep.=3", "sweep.key=value"]),
    ],
)
def test_a_mistake_in_the_section(file, changes, options, words):
    with pytest.raises(UserError) as told:
        read(file, changes, options)
    for word in words:
        assert word in str(told.value), word


def test_a_section_that_is_none(tmp_path):
    (tmp_path / "odd.toml").write_text("sweep = 3\n")
    with pytest.raises(UserError, match="must be a section"):
        read(tmp_path / "odd.toml", [], {})
