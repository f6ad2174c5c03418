"""Which room may import which. A method's author reads the contract and nothing else."""

import ast
from pathlib import Path

import pytest

import coterie

ROOT = Path(coterie.__file__).parent
CONTRACT = {
    "control",
    "convex",
    "counting",
    "cut",
    "errors",
    "flops",
    "graph",
    "heads",
    "method",
    "objective",
    "ragged",
    "round",
    "settings",
    "steps",
    "streams",
    "task",
    "tree",
}
ROOMS = {
    "methods": CONTRACT,
    "models": CONTRACT,
    "aggregate": CONTRACT,
    "data": {"errors", "federation", "own", "settings"},
    "own": {"errors", "federation", "registry", "streams"},
    "partition": {"errors", "federation", "ragged", "settings"},
    "engine": CONTRACT | {"aggregate", "cost", "evaluate", "federation"},
    "report": set(),
    "experiments": CONTRACT | {"engine", "federation", "folder", "models", "recipe", "registry", "report", "training"},
    "sweep": CONTRACT
    | {"engine", "experiments", "federation", "folder", "progress", "recipe", "registry", "report", "training"},
    "benchmarks": CONTRACT | {"engine", "evaluate", "federation", "recipe", "report", "training"},
}
ONLY_IN = {
    "flwr": ("engine/flower*.py", "benchmarks/peers*.py"),
    "ray": ("engine/ray*.py",),
    "typer": ("cli/*.py",),
    "optuna": ("sweep/study.py",),
    "PIL": ("own/images.py", "data/*.py"),
    "plotly": ("report/*.py",),
    "pyarrow": ("own/table.py",),
}


def imports(file: Path) -> set[str]:
    """Every module that the file imports, anywhere in it, as a dotted name."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names} if node.module == "coterie" else {node.module}
            )
    return found


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room):
    for file in files():
        if file.relative_to(ROOT).parts[0] == room:
            parts = {name.split(".")[1] for name in imports(file) if name.startswith("coterie.")}
            assert parts <= ROOMS[room] | {room}, f"{file.name} imports {parts - ROOMS[room] - {room}}"


def test_the_contract_stands_alone():
    for name in CONTRACT:
        of_it = [ROOT / f"{name}.py"] if (ROOT / f"{name}.py").exists() else list((ROOT / name).glob("*.py"))
        assert of_it, name
        for file in of_it:
            parts = {module.split(".")[1] for module in imports(file) if module.startswith("coterie.")}
            assert parts <= CONTRACT, f"{file.name} imports {parts - CONTRACT}"


def test_methods_do_not_know_each_other():
    for file in (ROOT / "methods").glob("[!_]*.py"):
        assert not {name for name in imports(file) if name.startswith("coterie.methods")}, file


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


def test_files_stay_small():
    for file in files():
        assert len(file.read_text().splitlines()) <= 300, file
    for file in (ROOT / "methods").glob("[!_]*.py"):
        assert 30 <= len(file.read_text().splitlines()) <= 120, file
