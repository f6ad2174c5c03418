"""Which module may import which. Every module of the package is covered."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import coterie

ROOT = Path(coterie.__file__).parent
BASE = {"errors", "settings", "streams"}
MAY_IMPORT = {
    # package or module: the packages and modules it may import, besides its own package
    "errors": set(),
    "settings": {"errors"},
    "streams": set(),
    "registry": {"errors"},
    "core": BASE,
    "methods": BASE | {"core", "registry"},
    "models": BASE | {"core"},
    "aggregate": BASE | {"core"},
    "data": BASE | {"core", "registry"},
    "measure": BASE | {"core", "clients.clients"},
    "storage": BASE | {"core", "measure", "data.ragged"},
    "server": BASE | {"core", "aggregate", "measure", "clients.clients"},
    "clients": BASE
    | {"core", "aggregate", "measure", "storage", "models", "registry"}
    | {"data.federation", "data.ragged", "sites.socket"},
    "report": BASE | {"core", "measure", "data"},
    "track": BASE | {"measure", "report", "clients.clients", "server.rounds"},
    "recipe": BASE | {"core", "aggregate", "models", "data", "server", "registry"},
    "outcome": BASE | {"core", "clients", "server", "measure", "data", "registry"},
    "run": BASE
    | {
        "core",
        "models.model",
        "clients",
        "server",
        "measure",
        "storage",
        "data",
        "registry",
        "outcome",
        "report.words",
        "sites.model",
    },
    "prepare": BASE | {"core", "clients", "server", "data", "registry", "recipe"},
    "training": BASE
    | {"core", "clients", "server", "measure", "storage", "data", "models", "registry", "recipe", "prepare", "run"}
    | {"report.page", "track.bars"},
    "testing": BASE | {"core", "data", "run", "training"},
    "lab": BASE
    | {"core", "server", "measure", "storage", "data", "models", "registry", "recipe", "prepare", "training", "report"}
    | {"clients.simulated"},
    "sites": BASE
    | {"core", "aggregate.mean", "clients", "data", "measure", "prepare", "recipe", "registry", "server", "storage"},
    "cli": BASE
    | {"clients", "core.tree", "data.own", "run"}
    | {"lab", "measure", "report", "storage", "track", "recipe", "registry", "sites", "training"},
    "__main__": {"cli"},
    "__init__": {"errors", "data.federation", "recipe", "run", "training", "methods"},
}
ONLY_IN = {
    "cryptography": ("sites/certs.py", "clients/flower_*.py"),
    "flwr": ("clients/flower_*.py",),
    "httpx": ("clients/flower_*.py",),
    "starlette": ("clients/flower_gateway.py",),
    "uvicorn": ("clients/flower_gateway.py",),
    "ray": ("clients/ray*.py",),
    "typer": ("cli/*.py",),
    "optuna": ("lab/sweep/study.py",),
    "PIL": ("data/files/images.py", "data/sets/*.py"),
    "plotly": ("report/*.py", "lab/sweep/charts.py"),
    "pyarrow": ("data/own/table.py",),
    "scipy": ("core/steps/simplex.py", "lab/claims/statistics.py"),
    "rich": ("cli/*.py", "track/*.py", "report/*.py", "data/files/fetch.py"),
}


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def name_of(file: Path) -> str:
    """Return the dotted name of a module, without `coterie.`."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


MODULES = {name_of(file): file for file in files()}


def imports(file: Path) -> set[str]:
    """Return every module that a file imports, anywhere in it, as a dotted name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= {_module(f"{node.module}.{alias.name}") for alias in node.names}
    return found


def _module(name: str) -> str:
    """Return the module that `name` is, or that it is an attribute of."""
    inner = name.removeprefix("coterie.")
    is_module = inner in MODULES or f"{inner}.__init__" in MODULES
    return name if not name.startswith("coterie.") or is_module else name.rpartition(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_its_package_may(name):
    package = name.split(".")[0]
    allowed = MAY_IMPORT[package] | {package}
    for imported in imports(MODULES[name]):
        if imported.startswith("coterie."):
            inner = imported.removeprefix("coterie.")
            assert any(inner == each or inner.startswith(f"{each}.") for each in allowed), f"{name} imports {inner}"


def test_the_top_level_has_ten_modules():
    assert {name for name in MODULES if "." not in name} - {"__init__", "__main__"} == {
        *("errors", "settings", "streams", "registry", "recipe", "prepare", "training", "outcome", "run", "testing")
    }


def test_methods_do_not_know_each_other():
    for file in (ROOT / "methods").glob("[!_]*.py"):
        assert not {name for name in imports(file) if name.startswith("coterie.methods")}, file


def test_engines_know_no_concrete_method():
    for file in (ROOT / "clients").glob("*.py"):
        assert not {name for name in imports(file) if name.startswith("coterie.methods")}, file


@pytest.mark.parametrize("file", sorted((ROOT / "server").glob("*.py")), ids=lambda file: file.name)
def test_the_server_cannot_name_a_personal_state(file):
    """No identifier, attribute, argument or text in server/ contains the word `personal`."""
    for node in ast.walk(ast.parse(file.read_text())):
        words = [getattr(node, field, None) for field in ("id", "attr", "arg", "name", "value", "asname", "module")]
        assert not [word for word in words if isinstance(word, str) and "personal" in word.lower()], ast.dump(node)


@pytest.mark.parametrize("name", ["agent", "files", "names", "policy", "sent", "state", "terms"])
def test_what_runs_at_a_site_does_not_know_the_servers_side(name):
    """The other modules of sites/ are for the server, or for both."""
    forbidden = ("server", "recipe", "prepare", "training", "sites.server", "sites.roster", "clients.sites")
    for imported in imports(MODULES[f"sites.{name}"]):
        inner = imported.removeprefix("coterie.")
        assert not any(inner == each or inner.startswith(f"{each}.") for each in forbidden), f"{name} imports {inner}"


def test_keys_and_policies_need_no_pytorch():
    """Commands that use them start at once, and a decision about a run needs no code that handles data."""
    code = "import sys\nfrom coterie.sites import certs, policy, roster, sent, terms\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("library", "where"), ONLY_IN.items())
def test_a_library_stays_where_it_belongs(library, where):
    for file in files():
        if library in {name.split(".")[0] for name in imports(file)}:
            assert any(map(file.relative_to(ROOT).match, where)), f"{file} imports {library}"


def test_the_import_finder_finds(tmp_path):
    file = tmp_path / "example.py"
    file.write_text(
        "import flwr.app\ndef f():\n    from coterie.methods.pflego import PFLEGO\nfrom coterie import cli\n"
    )
    assert imports(file) == {"flwr.app", "coterie.methods.pflego", "coterie.cli"}


def code_lines(file: Path) -> int:
    """Count the lines of code: neither blank, nor a comment, nor part of a docstring."""
    text = file.read_text()
    lines = {n for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_files_stay_small():
    for file in files():
        assert code_lines(file) <= 280, file
    for file in (ROOT / "methods").glob("[!_]*.py"):
        assert code_lines(file) <= 90, f"{file}: {code_lines(file)} lines of code"
    assert len((ROOT / "methods" / "lg_fedavg.py").read_text().splitlines()) <= 45
