"""The examples in the README and the guides run as they are printed, and what they refer to is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            yield pytest.param(code, id=f"{page.name}-{number}")


@pytest.mark.parametrize("code", list(examples()))
def test_an_example_runs(code):
    namespace = {}
    exec(code, namespace)
    assert namespace["run"].summary["existing"]["as_is"]["mean"] > 0.9
    assert namespace["anna"].classes == (0, 1)
    assert namespace["emil"].classes == (8, 9)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_commands_in_the_readme_exist():
    from coterie.cli import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    text = (ROOT / "README.md").read_text()
    assert {"run", "bench", "methods", "datasets", "partitions", "models", "recipes"} == commands
    assert set(re.findall(r"coterie ([a-z]+)", text)) <= commands
