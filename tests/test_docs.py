"""The examples in the README and the guides run as they are printed, and what they refer to is there."""

import itertools
import json
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from commands import coterie, in_folder
from coterie.cli.app import app
from coterie.recipe import Recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


QUOTED_IN_THE_TEXT = {
    "feddecay-pubmed-five",
    "feddecay-writers-epochs-validation",
    "feddecay-writers-grid",
    "pflego-cifar-batch1",
    "pflego-default-init",
    "pflego-emnist-files",
    "pflego-fashion-rates",
}
"""Stored results of which a page shows some figures but not the table."""


def examples(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Runs the examples of a page in their order, in a folder of their own; what they leave behind is returned."""
    monkeypatch.chdir(tmp_path)

    def run(page):
        namespace = {}
        for code in examples(page):
            exec(code, namespace)
        return namespace

    return run


def test_the_example_of_the_readme_runs(play):
    left = play(ROOT / "README.md")
    assert left["run"].summary.existing.as_is.mean > 0.9
    assert left["anna"].classes == (0, 1)
    assert left["emil"].classes == (8, 9)


def test_the_guide_to_own_data_runs(play, capsys):
    guide = ROOT / "docs" / "own-data.md"
    assert len(examples(guide)[1].splitlines()) < 20
    left = play(guide)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("4 clients and 1 new user, ")
    existing, new = map(float, printed[1].split())
    assert existing > 0.95
    assert new > 0.7
    assert printed[3].startswith("R² 0.9")
    assert [printed[2], *printed[4:]] == ["('type 0', 'type 1')", "type 0", "(7, 8, 9)"]
    assert left["fed"].x.shape[1:] == (16, 16)


def test_the_guide_to_own_data_runs_without_python(tmp_path, monkeypatch):
    """The recipe and the command at its end, on the table that its first example writes."""
    guide = ROOT / "docs" / "own-data.md"
    _, text = guide.read_text().split("## Without Python\n")
    recipe, command = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", text, re.MULTILINE)
    _, *arguments = shlex.split(command.replace("\\\n", ""))
    with in_folder(tmp_path, monkeypatch):
        exec(examples(guide)[0], {})
        federation = Recipe.parse(tomllib.loads(recipe)).federation()
        assert (len(federation.existing), len(federation.new)) == (4, 1)
        assert coterie(monkeypatch, *arguments, "--out", "run") == 0
    rounds = (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()
    assert len(rounds) == 40  # of the recipe digits, which goes on where nothing is said
    assert len(json.loads(rounds[-1])["cohort"]) == 5


def test_the_guide_to_scafflix_runs(play, capsys):
    """What the page says below its example: at the same number of aggregations a lower objective, for more gradients.

    Also what it says about train_loss: the objective without mu, with clients weighted by size.
    """
    left = play(ROOT / "docs" / "scafflix.md")
    found = re.findall(r"^(\S+) (\w+) (\S+) after (\d+) local gradients$", capsys.readouterr().out, re.MULTILINE)
    assert [line[:2] for line in found] == [(alpha, name) for alpha in ("1.0", "0.1") for name in ("FLIX", "Scafflix")]
    for flix, scafflix in (found[:2], found[2:]):
        assert float(scafflix[2]) < float(flix[2])
        assert int(scafflix[3]) > int(flix[3])
    run, federation, losses, sizes = left["run"], left["federation"], [], []
    for i, name in enumerate(left["clients"]):
        rows = federation.splits["train"].row(i)
        with torch.no_grad():
            losses.append(float(cross_entropy(run.model(name)(federation.x[rows].double()), federation.y[rows])))
        sizes.append(len(rows))
    assert len(set(sizes)) > 1
    assert run.summary.train_loss == pytest.approx(np.average(losses, weights=sizes), rel=1e-9)
    assert left["objective"](run, mu=0.0) == pytest.approx(np.mean(losses), rel=1e-9)
    assert left["objective"](run) > 1.1 * run.summary.train_loss


def test_the_guide_to_feddecay_runs(play, capsys):
    """What the page says below its example: the more emphasis, the worse at once and the better after adaptation."""
    play(ROOT / "docs" / "feddecay.md")
    line = r"^(\S+): emphasis (\S+), R² (\S+) at once, (\S+) after three steps$"
    found = re.findall(line, capsys.readouterr().out, re.MULTILINE)
    beta, emphasis, at_once, adapted = (list(map(float, column)) for column in zip(*found, strict=True))
    assert beta == [0, 0.5, 0.8, 1]
    assert (emphasis[0], emphasis[-1]) == (0, 0.875)
    for rising in (emphasis, at_once[::-1], adapted):
        assert all(one < other for one, other in itertools.pairwise(rising))


def test_the_guide_to_participation_runs(play, capsys):
    left = play(ROOT / "docs" / "participation.md")
    counts = [record.population.clients for record in left["run"].history if record.population]
    assert capsys.readouterr().out == f"{counts}\n"
    assert len(set(counts)) > 1


def test_every_guide_with_an_example_is_run_above():
    with_examples = {page.name for page in (ROOT / "docs").rglob("*.md") if examples(page)}
    assert with_examples == {"feddecay.md", "own-data.md", "participation.md", "scafflix.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def stored_results():
    """Folders of `results/` with the figures of single runs, from which tables can be built."""
    return sorted(path.parent.name for path in (ROOT / "results").glob("*/runs.json"))


def page_of(name):
    return (ROOT / "docs" / "results" / f"{name.partition('-')[0]}.md").read_text()


@pytest.mark.parametrize("name", stored_results())
def test_a_page_has_the_command_that_rebuilds_a_table_and_shows_its_rows(name, tmp_path, monkeypatch):
    """The command runs as it is printed, on a copy of the stored figures."""
    page = page_of(name)
    pattern = rf"^    coterie (reproduce .*--only-table --out results/{re.escape(name)})$"
    (command,) = re.findall(pattern, page, re.MULTILINE)
    folder = tmp_path / "results" / name
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "results" / name / "runs.json", folder)
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, *shlex.split(command)) == 0
    rows = [line for line in (folder / "table.md").read_text().splitlines() if line.startswith("|")]
    assert len(rows) > 2
    assert "not run" not in "".join(rows)
    if name not in QUOTED_IN_THE_TEXT:
        assert [row for row in rows if row not in page.splitlines()] == []
    stored = ROOT / "results" / name / "figure.svg"
    assert stored.exists() == (f"({os.path.relpath(stored, ROOT / 'docs' / 'results')})" in page)
    if stored.exists():
        assert (folder / "figure.svg").read_bytes() == stored.read_bytes()


def test_the_table_of_changing_populations_is_rebuilt_from_its_measurements(tmp_path, monkeypatch):
    page, stored = page_of("pflego"), "results/pflego-population"
    (command,) = re.findall(rf"^    coterie (reproduce .*--only-table --out {stored})$", page, re.MULTILINE)
    shutil.copytree(ROOT / stored / "measured", tmp_path / stored / "measured")
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, *shlex.split(command)) == 0
    rows = [line for line in (tmp_path / stored / "table.md").read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 22
    assert [row for row in rows if row not in page.splitlines()] == []
    assert (tmp_path / stored / "figure.svg").read_bytes() == (ROOT / stored / "figure.svg").read_bytes()


def test_the_page_quotes_the_two_best_settings_of_decay_per_epoch():
    stored = json.loads((ROOT / "results" / "feddecay-writers-epochs-validation" / "runs.json").read_text())
    scores = {name: run["seeds"]["100"]["picked"]["validation"] for name, run in stored.items() if "-epoch-" in name}
    best, second = sorted(scores, key=lambda name: scores[name], reverse=True)[:2]
    assert (best, second) == ("feddecay-epoch-0.15-0.8", "feddecay-epoch-0.5-0.8")
    text = " ".join(page_of("feddecay-writers-epochs-validation").split())
    assert "It selects the rate 0.15 with β = 0.8" in text
    quoted = f"validation accuracy is {scores[best]:.1f} there, and {scores[second]:.1f} at the rate 0.5 with β = 0.8"
    assert quoted in text


def test_the_table_of_what_leaves_a_site_is_what_the_command_prints(tmp_path, monkeypatch, capsys):
    def cells(text):
        rows = [line.strip().strip("|").split("|") for line in text.splitlines() if line.strip().startswith("|")]
        return [[cell.strip().replace("\\*", "*") for cell in row] for row in rows if "---" not in row[0]]

    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, "methods", "--leaves") == 0
    _, section = (ROOT / "docs" / "deploy.md").read_text().split("    coterie methods --leaves\n")
    printed = cells(capsys.readouterr().out)
    assert cells(section.partition("\n##")[0]) == printed
    assert {"pflego", "scafflix", "fedpac"} < {row[0] for row in printed}


def test_commands_in_the_readme_exist():
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    commands |= {group.name for group in app.registered_groups}
    text = (ROOT / "README.md").read_text()
    listings = {"methods", "datasets", "partitions", "models", "settings", "recipes"}
    deployment = {"certs", "sites", "server", "client", "courier", "local", "status", "predict"}
    assert {"run", "bench", "claims", "data", "reproduce", "sweep"} | deployment | listings == commands
    assert set(re.findall(r"coterie ([a-z]+)", text)) <= commands
