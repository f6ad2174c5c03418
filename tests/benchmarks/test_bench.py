"""The benchmark suite: its command, its letters, and whether its hand-written baselines compute the same as Coterie."""

import json
from dataclasses import replace

import pytest
import torch
from benchmarks.result import Figure, Result
from benchmarks.timing import timing_recipe

from benchmarks import paper_size, population, real_sites, suite, tiny_clients, user_loops
from commands import coterie
from coterie.errors import UserError
from coterie.prepare import prepare


def bench(monkeypatch, *arguments):
    return coterie(monkeypatch, "bench", *arguments)


def test_letters():
    assert suite.choose(["b", "A"]) == ["B", "A"]
    assert suite.choose([]) == list(suite.SUITE)
    with pytest.raises(UserError, match="'Q'; available: A, B"):
        suite.choose(["a", "Q"])


def test_a_wrong_letter_ends_before_any_work(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(suite, "measure", lambda *_: pytest.fail("work was done"))
    assert bench(monkeypatch, "A", "x") == 2
    assert "no benchmark 'x'; available: A, B, C, D, E, F, G, H, I, J, K" in capsys.readouterr().err
    assert bench(monkeypatch, "A", "--repeats", 0) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_and_writes_and_a_missed_target_is_no_error(monkeypatch, tmp_path, capsys):
    missed = Result("Z", {"a": [1.0]}, [Figure("a / b", 3.0, at_most=2)])
    monkeypatch.setattr(suite, "measure", lambda letter, repeats: missed)
    assert bench(monkeypatch, "a", "B", "--repeats", 1, "--out", tmp_path / "here") == 0
    assert "✗" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "here").iterdir()} == {"A.json", "B.json"}
    assert json.loads((tmp_path / "here" / "A.json").read_text())["figures"][0]["met"] is False


LONG = {"K": [pytest.mark.slow, pytest.mark.timeout(900)]}
SMALLER = {name: replace(case, clients=2, examples=12) for name, case in user_loops.CASES.items()}
SMALL = {
    "timing": {"TURN": 0.0},
    "paper_size": {"EXAMPLES": 12, "TESTS": 4, "FEATURES": 6, "HIDDEN": 5},
    "tiny_clients": {"CLIENTS": 8, "PART": 2},
    "conv": {"CLIENTS": 2, "EXAMPLES": 4, "CLASSES": 2},
    "population": {
        "POPULATIONS": (100, 200),
        "VARIANTS": {"PFLEGO": ({"name": "pflego", "tau": 2}, True)},
        "WARM_UP": 1,
    },
    "growth": {"VARIED": {"tau": (1, 2), "r": (1, 2), "width": (3, 4)}},
    "user_loops": {"CASES": SMALLER},
    "threads": {"NAMES": ["MLP, 50 x 200, batch 10, 5 epochs"], "CASES": SMALLER},
    "choices": {"EXAMPLES": (5,), "FEATURES": (20,), "CLIENTS": 3},
    "whole_runs": {"RUNS": {"digits": ["digits-fedavg", "--set", "run.rounds=2"]}},
    "real_sites": {
        "SITES": (2, 3),
        "KILLED": ("gateway",),
        "LARGE": {**real_sites.DIGITS, "model": {"name": "mlp", "hidden": [9]}},
    },
    "against_peers": {"time_peers": lambda work, repeats: {"one": 5.0, "other": "not installed"}},
}


@pytest.mark.parametrize("letter", [pytest.param(each, marks=LONG.get(each, [])) for each in suite.SUITE])
def test_each_benchmark_from_end_to_end(monkeypatch, letter):
    for module, values in SMALL.items():
        for name, value in values.items():
            monkeypatch.setattr(f"benchmarks.{module}.{name}", value)
    result = suite.measure(letter, repeats=1)
    assert result.title.startswith(f"{letter}: ")
    assert all(len(seconds) >= 1 and min(seconds) > 0 for seconds in result.seconds.values())
    assert all(figure.value > 0 for figure in result.figures)
    assert any(figure.target for figure in result.figures) or letter in "HI"


def test_tiny_clients_by_hand_is_coteries_fedavg():
    recipe = timing_recipe("loop", 8, method=tiny_clients.METHOD, model=tiny_clients.MODEL)
    _, clients, rounds = prepare(recipe, tiny_clients.federation(8))
    before = rounds.shared
    by_hand = tiny_clients.HandBatched.first_round(clients.load, tiny_clients.STEPS, tiny_clients.BATCH)
    after = by_hand.play(before, tiny_clients.RATE)
    next(rounds.play())
    assert after.keys() == rounds.shared.keys()
    for name, value in rounds.shared.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(value, before[name], atol=1e-4)


@pytest.mark.parametrize("name", user_loops.CASES)
def test_plain_loops_end_in_coteries_model(name):
    case = SMALLER[name]
    _, _, rounds = prepare(timing_recipe("auto", 2, **case.sections), case.federation())
    loop, settings = case.loop
    after = getattr(case.plain(), loop)(**settings)
    before = rounds.shared
    next(rounds.play())
    assert after.keys() == rounds.shared.keys()
    moved = 0.0
    for key, value in rounds.shared.items():
        torch.testing.assert_close(after[key], value.float(), rtol=1e-5, atol=1e-6)
        moved = max(moved, float((value - before[key]).abs().max()))
    assert moved > 1e-4


def test_a_population_shares_its_pool():
    federation = population.federation(6_000)
    assert federation.sizes().tolist() == [population.EXAMPLES] * 6_000
    assert federation.sizes("test").sum() == 0
    assert federation.splits["train"].row(5_000).tolist() == list(range(20))
    assert federation.splits["train"].row(1).tolist() == list(range(20, 40))
    assert federation.classes.row(5_999).tolist() == list(range(10))


def test_the_products_are_those_of_a_round(monkeypatch):
    for name, value in {"FEATURES": 5, "HIDDEN": 4}.items():
        monkeypatch.setattr(paper_size, name, value)
    shapes = []
    multiply = torch.mm

    def watched(a, b, out):
        shapes.append((*a.shape, b.shape[1]))
        return multiply(a, b, out=out)

    monkeypatch.setattr(torch, "mm", watched)
    paper_size.all_products(examples=6, classes=3, steps=2)()
    assert shapes == [(6, 5, 4), (4, 6, 5), (6, 4, 3), (3, 6, 4), (6, 3, 4)] * 2
