"""The declared claims, and the board that is written from them and from the stored results."""

import ast
import shutil
from functools import cache
from pathlib import Path

import pytest

from commands import coterie, in_folder
from coterie import recipe
from coterie.errors import UserError
from coterie.lab.claims import costs, declared
from coterie.lab.claims.board import Board, summary
from coterie.lab.claims.effects import Verdict
from coterie.lab.claims.stored import Results, matches
from coterie.lab.papers.sheet import Sheet

ROOT = Path(__file__).parents[3]
CLAIMS = {f"{paper.name} {claim.name}": claim for paper in declared.papers() for claim in paper.claims()}
MISSING = {name: claim.lacking() for name, claim in CLAIMS.items() if claim.missing}
TESTS = sorted({test for claim in CLAIMS.values() for test in (*claim.tests, *claim.refuted_by)})


@pytest.fixture(scope="module")
def results():
    return Results(ROOT / "results")


@pytest.fixture(scope="module")
def board(results):
    return Board(results, ROOT / "docs" / "results")


@cache
def functions(file):
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_page_is_what_the_stored_results_give(board):
    assert (ROOT / "docs" / "results" / "index.md").read_text() == board.page(), "run `coterie claims`"


def test_the_readme_has_the_head_of_the_page(board):
    text = (ROOT / "README.md").read_text()
    lines = summary(board.judged())
    assert len(lines) <= 10
    assert [line for line in lines if line not in text.splitlines()] == [], "copy them from docs/results/index.md"
    assert "(docs/results/index.md)" in text


def test_names_are_unique_and_every_claim_has_one_kind_of_evidence():
    assert len(CLAIMS) == sum(len(paper.claim) for paper in declared.papers())
    for name, claim in CLAIMS.items():
        assert bool(claim.compare) + bool(claim.tests or claim.refuted_by) <= 1, name
        assert claim.compare or claim.tests or claim.refuted_by or claim.missing, (
            f"neither tested nor what it costs: {name}"
        )
        if compare := claim.comparison():
            assert (compare.at_least is None) != (compare.within is None), name


@pytest.mark.parametrize("name", TESTS)
def test_a_test_that_decides_about_a_claim_exists(name):
    file, _, function = name.partition("::")
    assert function.startswith("test_")
    assert function in functions(file)


def test_every_verdict_has_a_link_to_stored_figures_or_to_a_test(board):
    judged = [each for _, claims in board.judged() for each in claims]
    assert {each.verdict for each in judged} == set(Verdict)
    for each in judged:
        assert (each.verdict is Verdict.NOT_TESTED) == (not each.found and not each.claim.tests + each.claim.refuted_by)
        if each.found:
            folder = ROOT / "results" / each.found.compare.folder
            assert (folder / "runs.json").exists() or (folder / "table.md").exists()
        if each.verdict is Verdict.NOT_TESTED:
            assert each.claim.missing, each.claim.name


@pytest.mark.parametrize("name", MISSING)
def test_the_cost_of_what_is_missing_covers_all_its_runs(name, results):
    """Each part of the cost fits some run of the command, and each run has its part."""
    missing = MISSING[name]
    assert costs.hours(missing, results) >= 0  # 0 once all of it is measured
    places = [each.at for each in missing.campaign(Path("nothing", "stored")).missing()]
    for part in missing.parts():
        assert part.once or any(matches(at, part.where) for at in places), part
        assert bool(part.folder) + bool(part.flops) + bool(part.seconds) == 1, part
    assert all(any(matches(at, part.where) for part in missing.parts() if not part.once) for at in places)


def test_hours_are_rounds_times_seconds(results):
    missing = declared.Missing(
        experiment="pflego-table1",
        data="mnist",
        degree="high",
        methods="fedrep",
        seeds=3,
        cost=[{"folder": "pflego-table1", "row": "mnist-high-fedrep", "times": 2.0}],
    )
    (row,) = [line.row for line in results.lines("pflego-table1") if "-".join(line.at.values()) == "mnist-high-fedrep"]
    assert costs.hours(missing, results) == pytest.approx(3 * 200 * 2 * row.measured.seconds / 3600)
    assert costs.derivation(missing, results).startswith("3 runs, 600 rounds of ")


def test_what_is_measured_already_costs_nothing(results):
    done = declared.Missing(
        experiment="pflego-table1",
        data="mnist",
        degree="high",
        out="pflego-table1",
        cost=[{"flops": 1e15}, {"once": True, "flops": 1e15}],
    )
    assert costs.hours(done, results) == 0
    assert costs.derivation(done, results) == ""


def test_runs_without_a_cost_are_an_error(results):
    missing = declared.Missing(
        experiment="pflego-table1", data="mnist", cost=[{"where": {"method": "pflego"}, "seconds": 1.0}]
    )
    with pytest.raises(UserError, match="has 21 runs without a cost"):
        costs.hours(missing, results)


def test_every_stored_folder_is_declared_with_the_experiment_that_made_it(results):
    stored = {path.name for path in (ROOT / "results").iterdir() if path.is_dir()}
    assert stored == set(declared.folders())
    for each in declared.folders().values():
        page, _, _ = each.page.partition("#")
        assert (ROOT / "docs" / "results" / page).exists()


@pytest.mark.parametrize("name", sorted(declared.folders()))
def test_stored_runs_have_the_recipes_that_their_experiment_has_now(name, results):
    """Otherwise the page would show results of older recipes."""
    if name in results.campaigns():
        campaign = results.campaign(name)
        campaign.missing()  # raises an error if a recipe differs
        found = {cell.row for cell, _ in campaign.finished()}
        stored = {"-".join(line.at.values()) for line in results.lines(name)}
        assert found == stored, "the arguments in folders.toml do not choose all stored runs"
    elif not declared.folder(name).tables:
        assert declared.folder(name).campaign(ROOT / "results" / name).missing() == []


def test_the_printed_rows_of_fomaml_are_those_of_fedavg():
    """Tables 3 and 4 on SST-2: all three figures over existing and over new users agree in every digit."""
    for name in ("feddecay/sst2", "feddecay/sst2-epochs"):
        users = Sheet.of(recipe.load(name)).users
        assert users["fomaml"] == users["fedavg"]
        assert len(users["fomaml"]["existing"]) == len(users["fomaml"]["new"]) == 3
        assert users["feddecay"] != users["fedavg"]


def test_without_stored_results_the_command_says_where_they_are(tmp_path, monkeypatch, capsys):
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, "claims") == 2
    assert "results has no stored results" in capsys.readouterr().err.replace("\n", " ")
    assert not any(tmp_path.iterdir())


def test_the_command_writes_the_page_from_any_folder(tmp_path, monkeypatch, board):
    (tmp_path / "docs" / "results").mkdir(parents=True)
    shutil.copytree(ROOT / "results", tmp_path / "results")
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, "claims") == 0
    assert (tmp_path / "docs" / "results" / "index.md").read_text() == board.page()


def test_other_results_give_another_verdict(tmp_path, board):
    """One changed figure in a copy of the results turns a claim around."""
    shutil.copytree(ROOT / "results", tmp_path / "results")
    file = tmp_path / "results" / "pflego-emnist-files" / "runs.json"
    before = file.read_text()
    start = before.index('"figure": [') + len('"figure": [')
    file.write_text(before[:start] + "90.0" + before[before.index(",", start) :])
    after = Board(Results(tmp_path / "results"), tmp_path)

    def verdict(of):
        return next(each.verdict for _, claims in of.judged() for each in claims if each.claim.name == "emnist")

    assert (verdict(board), verdict(after)) == (Verdict.SMALLER, Verdict.NOT_CONFIRMED)
