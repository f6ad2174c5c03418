"""docs/papers.md: the page is what its rows give, and the commands and tests that it names exist."""

import ast
import importlib.util
import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from benchmarks import suite
from coterie import recipe as recipes
from coterie import registry
from coterie.cli.app import app
from coterie.lab.papers.experiment import cells
from coterie.lab.papers.laboratory import Laboratory

ROOT = Path(__file__).parents[1]
CONTENT = tomllib.loads((ROOT / "docs" / "papers.toml").read_text())
ROWS = [row for paper in CONTENT["paper"] for row in paper["row"]]
COMMANDS = sorted(
    {command for row in ROWS for command in row.get("commands", [])}
    | {row["follow"] for row in CONTENT["difference"] if "follow" in row}
    | set(re.findall(r"`(coterie (?:run|reproduce) [^`]+)`", (ROOT / "docs" / "papers.toml").read_text()))
)
TESTS = sorted({test for row in ROWS for test in row.get("tests", [])})


@cache
def generator():
    spec = importlib.util.spec_from_file_location("papers", ROOT / "docs" / "papers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(command: str) -> None:
    """Raise an error unless the command can be run: its options, names and settings are all known."""
    program, name, *arguments = shlex.split(command)
    assert program == "coterie"
    given = get_command(app).commands[name].make_context(name, arguments).params
    changes = list(given.get("changes") or [])
    if name == "reproduce":
        check_experiment(given, changes)
    elif name == "run":
        recipes.read(given["recipe"], changes)
    else:
        assert name == "bench", f"there is no check for coterie {name}"
        suite.choose(given["letters"])


def check_experiment(given: dict, changes: list[str]) -> None:
    name, kind = given["name"], registry.load("experiment", given["name"])
    options = {"data": given["data"], "degree": given["degree"], "method": given["methods"]}
    wanted = {axis: values.split(",") for axis, values in options.items() if values}
    if issubclass(kind, Laboratory):
        assert kind(name, wanted, given["scale"], given["seeds"], Path("unused"), changes).chosen
    else:
        for variant in kind().choose(name, wanted):
            assert cells(variant, given["scale"], given["seeds"], changes)


@cache
def functions(file: str) -> set[str]:
    """Return the names of the functions of a test file that pytest collects."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_the_page_is_what_its_rows_give():
    assert (ROOT / "docs" / "papers.md").read_text() == generator().page(), "run `python docs/papers.py`"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_its_names_and_settings(command):
    check(command)


@pytest.mark.parametrize("name", TESTS)
def test_a_test_exists(name):
    file, _, function = name.partition("::")
    assert Path(file).name.startswith("test_")
    assert function in functions(file)


def test_a_row_says_what_its_status_requires():
    for row in ROWS:
        place = f"{row['place']}: {row['what']}"
        assert set(row) <= {"place", "what", "status", "commands", "tests", "note"}, place
        assert row["status"] in generator().STATUSES, place
        covered = bool(row.get("commands") or row.get("tests"))
        if row["status"] == "works":
            assert covered, place
        elif row["status"] == "smaller scale":
            assert row.get("commands"), place
            assert row.get("note"), f"what is missing at full scale: {place}"
        else:
            assert row.get("note"), f"why: {place}"
            assert not row.get("commands"), place
    places = [(paper["name"], row["place"], row["what"]) for paper in CONTENT["paper"] for row in paper["row"]]
    assert len(set(places)) == len(places)
    cell_texts = [value for row in [*ROWS, *CONTENT["difference"]] for value in row.values() if isinstance(value, str)]
    assert not any("|" in text or "\n" in text for text in cell_texts)


def test_a_difference_says_how_to_follow_the_paper_or_why_not():
    for row in CONTENT["difference"]:
        assert ("follow" in row) != ("instead" in row), row["place"]
        assert len(row["quote"].split()) <= 15, row["place"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("coterie reproduce pflego-table9", "unknown experiment 'pflego-table9'"),
        ("coterie reproduce pflego-table1 --data digits", "no --data digits"),
        ("coterie reproduce pflego-table1 --scale large", "no --scale large"),
        ("coterie reproduce pflego-table2 --set method.tua=5", "tua"),
        ("coterie reproduce pflego-table2 --seed 3", "No such option: --seed"),
        ("coterie reproduce pflego-population --set run.round=3", "unknown key"),
        ("coterie run pflego/mnist-low", "mnist-low"),
        ("coterie run pflego/mnist-high --set method.towards=sent", "towards"),
        ("coterie bench Z", "no benchmark 'Z'"),
    ],
)
def test_the_check_of_commands_can_fail(command, words):
    with pytest.raises(Exception, match=words):
        check(command)
