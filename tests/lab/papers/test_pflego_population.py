"""The experiment with changing populations: its measure of bias, on problems where the answer is known."""

import json
from dataclasses import replace

import pytest

import tiny
from coterie.lab.papers import pflego_population as experiment
from coterie.lab.papers.laboratory import Measurement
from coterie.prepare import prepare
from coterie.recipe import Recipe


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(experiment, "RECIPE", tiny.RECIPE)
    monkeypatch.setattr(experiment, "DRAWS", 3000)


def laboratory(out):
    return experiment.Population("pflego-population", {}, "small", 1, out, ["run.rounds=20", "run.eval_every=20"])


def bias(tmp_path, options, r=12):
    recipe = laboratory(tmp_path).everything()[0].recipe
    tree = recipe.as_dict()
    tree["run"]["clients_per_round"] = r
    tree["population"] = options
    run = prepare(Recipe.parse(tree), recipe.federation())
    before = {name: value.clone() for name, value in run.rounds.shared.items()}
    found = experiment._bias(run.rounds)
    assert all((run.rounds.shared[name] == value).all() for name, value in before.items())
    sizes, slow = run.clients.sizes(), run.rounds.population.slow
    return {**found, "fast": sizes[~slow].sum() / sizes.sum()}


def test_if_all_clients_answer_there_is_no_bias(tmp_path):
    found = bias(tmp_path, {})
    assert found["step"] == pytest.approx(1, abs=1e-9)
    assert found["bias"] < 1e-6


def test_without_correction_the_step_is_too_short_and_its_direction_right(tmp_path):
    found = bias(tmp_path, {"dropout": 0.4, "correct": False})
    assert found["step"] == pytest.approx(0.6, abs=0.01)
    assert found["bias"] == pytest.approx(0.4, abs=0.03)
    assert found["turn"] < 0.1
    assert bias(tmp_path, {"dropout": 0.4})["bias"] < 0.1


def test_deadlines_turn_the_step_even_if_its_length_is_right(tmp_path):
    found = bias(tmp_path, {"slow": 0.5, "late": 1.0})
    assert found["step"] == pytest.approx(2 * found["fast"], rel=1e-3)  # half of the clients, with these examples
    assert found["turn"] > 0.2
    assert bias(tmp_path, {"slow": 0.5, "late": 1.0, "correct": False})["turn"] == pytest.approx(
        found["turn"], abs=1e-3
    )


def test_all_measurements_make_a_table_and_a_figure(tmp_path):
    lab = laboratory(tmp_path)
    names = [each.name for each in lab.everything()]
    assert len(set(names)) == len(names) == 2 * (2 + 2 * 4)
    for measurement in lab.everything()[2:4]:
        lab.measure(measurement, lambda: False)
    lab.chosen[:] = lab.chosen[2:4]
    (table,) = lab.report()
    assert [line[:3] for line in table.lines] == [["sgd", "dropout", "with"], ["sgd", "dropout", "without"]]
    kept = json.loads((tmp_path / "measured" / "sgd-dropout-with-0.json").read_text())
    assert kept["curve"]["round"] == [0, 10, 20]
    assert kept["curve"]["loss"][-1] < kept["curve"]["loss"][0]
    assert (tmp_path / "figure.svg").exists()


def test_the_situations_differ_from_each_other_in_the_population_only(tmp_path):
    trees = [each.recipe.as_dict() for each in laboratory(tmp_path).everything() if each.at["server"] == "sgd"]
    populations = [tree.pop("population") for tree in trees]
    assert all(tree == trees[0] for tree in trees)
    assert len({json.dumps(each) for each in populations}) == len(populations)
    assert all(each["slow"] == 0.3 for each in populations)


def test_it_stops_when_told(tmp_path):
    lab = laboratory(tmp_path)
    first = lab.everything()[0]
    with pytest.raises(KeyboardInterrupt):
        lab.measure(Measurement(first.at, replace(first.recipe)), lambda: True)
    assert list(tmp_path.iterdir()) == []
