"""What someone meets who has just installed Coterie: hints, listings, narrow terminals, and signals."""

import os
import signal
import subprocess
import sys
import time

import pytest

from commands import coterie, in_folder
from coterie import registry
from coterie.cli import common
from coterie.cli.app import app
from coterie.cli.hints import WithHints
from coterie.recipe import PLAIN

SMALL = ["--set", "partition.clients=10", "--set", "method.tau=2", "--set", "run.clients_per_round=2"]
EARLY = "\nStopped before training began. Run the same command again.\n"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    with in_folder(tmp_path, monkeypatch):
        yield


def told(capsys):
    """What was printed, without the frames and line breaks of a terminal."""
    return " ".join("".join(capsys.readouterr()).replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--rounds", "3"], "use --set run.rounds=3."),
        (["--clients-per-round=5"], "use --set run.clients_per_round=5."),
        (["--tau"], "use --set method.tau=VALUE."),
        (["--method", "fedavg"], "use --set method.name=fedavg."),
        (["--wings", "2"], "Settings are changed with --set SECTION.KEY=VALUE"),
    ],
)
def test_an_option_that_is_a_setting(monkeypatch, capsys, arguments, hint):
    assert coterie(monkeypatch, "run", *arguments) == 2
    assert hint in told(capsys)


def test_names_are_suggested_whatever_their_case(monkeypatch, capsys):
    assert coterie(monkeypatch, "run", "--set", "method.name=PFLEGO") == 2
    assert "(did you mean 'pflego'?)" in told(capsys)


@pytest.mark.parametrize("section", PLAIN)
def test_the_settings_of_a_section_are_explained(monkeypatch, capsys, section):
    assert coterie(monkeypatch, "settings", section) == 0
    shown = capsys.readouterr().out
    for name, field in PLAIN[section].__pydantic_fields__.items():
        assert name in shown
        assert field.description.split()[0] in shown


def test_all_sections_are_listed_and_an_unknown_one_is_an_error(monkeypatch, capsys):
    assert coterie(monkeypatch, "settings") == 0
    shown = told(capsys)
    for section in ("run", "eval", "engine", "population", "aggregate", "data", "method"):
        assert f"[{section}]" in shown
    assert "`coterie methods NAME` explains the other settings" in shown
    assert "The sum of w_i reply_i" in shown
    assert coterie(monkeypatch, "settings", "engin") == 2
    assert "did you mean 'engine'?" in told(capsys)


def test_short_help_and_completion(monkeypatch, capsys):
    assert coterie(monkeypatch, "run", "-h") == 0
    assert "--resume" in capsys.readouterr().out
    assert coterie(monkeypatch, "--help") == 0
    assert "--install-completion" in capsys.readouterr().out


def test_python_dash_m(tmp_path):
    done = subprocess.run([sys.executable, "-m", "coterie", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("coterie ")


@pytest.mark.parametrize(
    "arguments", [["recipes"], ["--help"], ["run", "--help"], ["certs", "show", "."], ["sites", "remove", "anna"]]
)
def test_what_needs_no_pytorch_does_not_load_it(arguments):
    code = (
        "import sys\nfrom coterie.cli import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL).returncode == 0


def test_a_broken_plug_in_is_a_row_of_the_listing(monkeypatch, capsys):
    monkeypatch.setattr(
        registry, "_third_party", lambda kind: {"mine": "someones_gone:Gone"} if kind == "method" else {}
    )
    assert coterie(monkeypatch, "methods") == 0
    shown = told(capsys)
    assert "ModuleNotFoundError: No module named 'someones_gone'" in shown
    assert "scaffold" in shown
    assert coterie(monkeypatch, "methods", "mine") == 2
    assert "cannot be loaded" in told(capsys)


@pytest.mark.parametrize(
    ("content", "why"),
    [("import sys; sys.exit(3)", "SystemExit: 3"), ("def FedMine(): ...", "not a class with the decorator @settings")],
)
def test_a_plug_in_that_is_no_method_is_a_row_of_the_listing(monkeypatch, capsys, tmp_path, content, why):
    (tmp_path / "someones_own.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(
        registry, "_third_party", lambda kind: {"mine": "someones_own:FedMine"} if kind == "method" else {}
    )
    monkeypatch.delitem(sys.modules, "someones_own", raising=False)
    assert coterie(monkeypatch, "methods") == 0
    assert why in told(capsys)
    assert coterie(monkeypatch, "run", *SMALL, "--set", "run.rounds=0", "--out", "run") == 0


@pytest.mark.parametrize("arguments", [["run", "--out"], ["run", "--resume"], ["sweep", "--trials"]])
def test_an_option_without_its_value_is_not_called_unknown(monkeypatch, capsys, arguments):
    assert coterie(monkeypatch, *arguments) == 2
    shown = told(capsys)
    assert "No such option" not in shown
    assert "requires an argument" in shown


@pytest.mark.parametrize(
    "setting",
    ["model.hidden=[100000000000]", "engine.memory=1e300", "partition.clients=100000000000000"],
)
def test_absurd_sizes_are_refused(monkeypatch, capsys, setting):
    assert coterie(monkeypatch, "run", "--set", setting, "--out", "run") == 2
    assert "error:" in told(capsys)


def test_an_absurd_number_of_components_is_refused(monkeypatch, capsys):
    assert coterie(monkeypatch, "run", "--set", "method.name=fedem", "--set", "method.components=10000000000") == 2
    assert "method.components" in told(capsys)


@pytest.mark.parametrize("command", ["methods", "datasets", "models"])
def test_listings_cut_nothing_off_in_a_narrow_terminal(monkeypatch, capsys, command):
    monkeypatch.setenv("COLUMNS", "40")
    assert coterie(monkeypatch, command) == 0
    assert "…" not in capsys.readouterr().out


def test_a_run_without_any_cohort_ends_with_an_error(monkeypatch, capsys, tmp_path):
    gone = ["--set", "population.leave=0.999999", "--set", "run.rounds=3", "--out", "gone"]
    assert coterie(monkeypatch, "run", *SMALL, *gone) == 1
    shown = told(capsys)
    assert "error: no client took part in any of the 3 rounds" in shown
    assert shown.count("round 1: no client took part") == 1
    assert "round 2: no client took part" not in shown
    assert (tmp_path / "gone" / "summary.json").exists()


def test_a_run_with_some_void_rounds_says_how_many(monkeypatch, capsys):
    some = ["--set", "population.dropout=0.7", "--set", "run.rounds=6", "--out", "some"]
    assert coterie(monkeypatch, "run", *SMALL, *some) == 0
    assert " of 6 rounds had no clients." in told(capsys)


def start(arguments, folder):
    """Start a run of many rounds and return it after its first round."""
    command = [sys.executable, "-m", "coterie", "run", *SMALL, "--set", "run.rounds=5000", "--out", folder, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log = folder / "rounds.jsonl"
    deadline = time.monotonic() + 60
    while not (log.exists() and log.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


def test_sigterm_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path):
    process = start([], tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143
    assert f"python -m coterie run --resume {tmp_path / 'run'}" in errors
    rounds = len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines())
    assert (tmp_path / "run" / "checkpoint" / f"round-{rounds:06d}").is_dir()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_imports_is_no_traceback(tmp_path, number, code):
    """A module that is imported first thing sends the signal, and hides the exception that comes of it."""
    (tmp_path / "typer.py").write_text(
        f"import os, time\ntry:\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(9)\n"
        "except BaseException:\n    raise ImportError('half of it') from None\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "recipes"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (code, EARLY)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("function", ["coterie.recipe.Recipe.federation", "coterie.training.prepare"])
def test_a_signal_before_the_first_round_says_what_to_do(tmp_path, function, number, code):
    program = (
        "import os, time\nfrom unittest.mock import patch\nfrom coterie.cli import main\n"
        f"stop = lambda *_: (os.kill(os.getpid(), {int(number)}), time.sleep(9))\n"
        f"with patch({function!r}, stop):\n    main()\n"
    )
    command = [sys.executable, "-c", program, "run", *SMALL, "--out", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, EARLY)
    assert not (tmp_path / "run").exists()


def test_signals_are_handled_as_before_once_a_command_has_ended(monkeypatch, capsys):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert coterie(monkeypatch, "run", *SMALL, "--set", "run.rounds=1") == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_exit_codes_of_signals():
    assert [common.exit_code([signal.SIGTERM, signal.SIGINT]), common.exit_code([])] == [143, 130]


def test_every_command_that_changes_settings_gives_hints():
    hinting = {command.callback.__name__ for command in app.registered_commands if command.cls is WithHints}
    assert hinting == {"run", "reproduce", "sweep"}
