"""What a machine can check of the project's English: docstrings stand alone, and messages use ordinary words."""

import ast
import re
from pathlib import Path

import pytest

import coterie

ROOT = Path(coterie.__file__).parent
REPOSITORY = Path(__file__).parents[2]
MIDDLE = re.compile(r"(Of|The same|Likewise|So many|Whoever|That|Those|What whoever|Same|And|But|Nor)\b")
"""Starts of a docstring that need the sentence before."""
NO_VERB = re.compile(
    r"(The|A|An|Of|In|With|Without|From|For|As|At|By|On|What|Which|Who|Whose|How|Where|When|Whether|If|This|These|Every"
    r"|Each|All|Some|Many|No|None|One|Two|Number|Names)\b|\W|[a-z0-9]"
)
"""Starts of a function's docstring that are not a verb."""
OLD = re.compile(
    r"\b(anew|at the most|in the place of|leave (it |them |one )?away|mends?|mended|there is:|likewise|thereof|wherever"
    r"|whoever|no part of|dear enough|goes on with|heirs?)\b",
    re.IGNORECASE,
)
"""Words that an ordinary reader stumbles over, and what we write instead: again, at most, instead of, omit, fix, ..."""


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def documented(file: Path) -> list[tuple[ast.AST, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)]
    return [(node, doc) for node in nodes if (doc := ast.get_docstring(node))]


def is_property(node: ast.AST) -> bool:
    names = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
    return any(name.split(".")[-1] in ("property", "cached_property") for name in names)


def texts(file: Path) -> list[tuple[int, str]]:
    """Return every string in a file: docstrings, attribute docstrings and messages."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return [(n.lineno, n.value) for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(ROOT)))
def test_docstrings_stand_alone(file):
    for node, doc in documented(file):
        place = f"{file.name}:{getattr(node, 'lineno', 1)}: {doc.splitlines()[0]}"
        assert not MIDDLE.match(doc), place
        if isinstance(node, ast.FunctionDef) and not is_property(node):
            assert not NO_VERB.match(doc), f"start with a verb: {place}"


@pytest.mark.parametrize("file", modules(), ids=lambda file: str(file.relative_to(ROOT)))
def test_words_are_ordinary(file):
    for line, text in texts(file):
        assert not (found := OLD.search(text)), f"{file.name}:{line}: {found}"


def pages() -> list[Path]:
    return sorted(
        [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("recipes/**/*.toml")]
    )


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_pages_use_ordinary_words(page):
    for number, line in enumerate(page.read_text().splitlines(), 1):
        assert not (found := OLD.search(line)), f"{page.name}:{number}: {found}"


def test_every_public_function_of_the_contract_has_a_docstring():
    for file in (ROOT / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                inner = node.name in (
                    "fits",
                    "found",
                    "known",
                    "along",
                    "counted_once",
                    "read",
                    "tree",
                    "f",
                    "slope",
                    "times",
                )  # nested
                assert inner or ast.get_docstring(node) or _overrides(file, node), f"{file.name}: {node.name}"


def _overrides(file: Path, node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Return whether a method with this name is documented in the same file, as of an abstract class."""
    names = [other.name for other, _ in documented(file) if isinstance(other, ast.FunctionDef)]
    return node.name in names


def test_the_checks_can_fail():
    assert MIDDLE.match("Of the file.")
    assert NO_VERB.match("The file.")
    assert not NO_VERB.match("Return the file.")
    assert OLD.search("Start the run anew.")
