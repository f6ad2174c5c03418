"""The commands as a user types them: what they print and write, and what they answer to mistakes."""

import csv
import gzip
import json
import shutil
import tomllib

import pytest

from commands import coterie, in_folder
from coterie import Federation, UserError, __version__, load, registry, train

SMALL = ["run.rounds=4", "run.eval_every=2", "run.clients_per_round=3", "method.tau=2", "partition.clients=10"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    with in_folder(tmp_path, monkeypatch):
        yield


def run(monkeypatch, *arguments, small=SMALL):
    return coterie(monkeypatch, "run", *(part for change in small for part in ("--set", change)), *arguments)


def without_seconds(summary):
    return {**summary, "cost": {**summary["cost"], "seconds": None, "eval_seconds": None}}


def test_a_run_leaves_a_folder_a_table_and_a_page(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch) == 0
    folder = tmp_path / "runs" / "digits-pflego-1"
    assert {path.name for path in folder.iterdir()} >= {
        "recipe.toml",
        "rounds.jsonl",
        "clients.csv",
        "summary.json",
        "report.html",
        "checkpoint",
    }
    summary = json.loads((folder / "summary.json").read_text())
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [record["round"] for record in rounds] == [1, 2, 3, 4]
    assert all(len(record["cohort"]) == 3 and record["train_loss"] > 0 for record in rounds)
    clients = list(csv.DictReader((folder / "clients.csv").read_text().splitlines()))
    assert [row["role"] for row in clients].count("new") == 2
    existing = [float(row["accuracy"]) for row in clients if row["role"] == "existing"]
    assert sum(existing) / 8 == pytest.approx(summary["existing"]["as_is"]["mean"])
    assert sum(int(row["visits"]) for row in clients) == 12
    recipe = tomllib.loads((folder / "recipe.toml").read_text())
    assert recipe["method"] == {
        "name": "pflego",
        "tau": 2,
        "beta": 0.1,
        "rho": 0.01,
        "server": "adam",
        "rho_decay": 0.0,
        "solver": "gd",
        "head_step": "algorithm1",
        "alpha": "all",
        "mu": 0.0,
    }
    printed = capsys.readouterr().out
    assert f"{100 * summary['new']['after']['mean']:.2f}" in printed
    assert "report.html" in printed
    assert run(monkeypatch) == 0  # the next one gets its own folder
    assert (tmp_path / "runs" / "digits-pflego-2").is_dir()


def without_seal(text: str) -> dict[str, object]:
    """Return summary.json without what says whether files were changed or mixed up."""
    return {name: value for name, value in json.loads(text).items() if name not in ("files", "run", "sha256")}


def test_json_is_the_summary_and_nothing_else(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--json", "--out", "here") == 0
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary == without_seal((tmp_path / "here" / "summary.json").read_text())
    assert set(summary) == {
        "method", "engine", "seed", "rounds", "score", "protocol", "existing", "new", "train_loss", "cost",
        "choices", "void_rounds", "evaluations", "visited", "never_visited", "stored_bytes", "train_score",
    }  # fmt: skip
    assert set(summary["existing"]) == {"as_is", "adapted", "participants"}
    assert set(summary["new"]) == {"before", "after"}
    assert set(summary["existing"]["as_is"]) >= {
        "mean", "weighted_mean", "std", "stderr", "bottom_decile", "last10_mean"
    }  # fmt: skip


def test_one_seed_one_result(monkeypatch, capsys):
    results = []
    for seed, out in ((5, "a"), (5, "b"), (6, "c")):
        assert run(monkeypatch, "--json", "--out", out, "--set", f"run.seed={seed}") == 0
        results.append(without_seconds(json.loads(capsys.readouterr().out)))
    assert results[0] == results[1]
    assert {**results[2], "seed": 5} != results[0]


@pytest.mark.parametrize(
    ("command", "kind"),
    [("methods", "method"), ("datasets", "data"), ("partitions", "partition"), ("models", "model")],
)
def test_listings_name_everything_that_is_registered(monkeypatch, capsys, command, kind):
    assert coterie(monkeypatch, command) == 0
    printed = capsys.readouterr().out
    for name in registry.names(kind):
        assert name in printed
        assert registry.load(kind, name).__doc__.split("\n")[0].split()[0] in printed


@pytest.mark.parametrize(
    ("command", "name", "words"),
    [
        ("methods", "fedprox", ["FedAvg", "tau", "50", "batch_size", "Examples per local step;"]),
        ("datasets", "folder", ['"y"', "Column of a table that holds the label.", "[height, width] to which images"]),
        ("models", "mlp", ["hidden", "[200]"]),
    ],
)
def test_one_is_shown_with_what_its_settings_are(monkeypatch, capsys, command, name, words):
    assert coterie(monkeypatch, command, name) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}: ")
    for word in words:
        assert word in printed, word


def test_one_that_is_not_there(monkeypatch, capsys):
    assert coterie(monkeypatch, "methods", "pflgo") == 2
    check_message(capsys, ["unknown method", "'pflego'"])


def test_experiments_are_listed_unless_one_is_named(monkeypatch, tmp_path, capsys):
    assert coterie(monkeypatch, "reproduce") == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in registry.names("experiment"))
    assert "PFLEGO, Table 2 and Figure 6: accuracy and loss on" in printed
    assert list(tmp_path.iterdir()) == []


def test_help_and_version(monkeypatch, capsys):
    assert coterie(monkeypatch, "--help") == 0
    assert "Search [sweep.space] of a recipe" in capsys.readouterr().out
    assert coterie(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"coterie {__version__}\n"


def test_recipes_are_listed(monkeypatch, capsys):
    assert coterie(monkeypatch, "recipes") == 0
    assert "digits-fedavg" in capsys.readouterr().out


BAD = {
    "unknown key": (["method.tua=3"], ["method.tua", "'tau'"]),
    "unknown section": (["methd.tau=3"], ["methd", "'method'"]),
    "wrong type": (["method.tau=many"], ["method.tau", "many", "integer"]),
    "fraction of a step": (["method.tau=2.5"], ["method.tau", "2.5"]),
    "r > I": (["run.clients_per_round=41"], ["run.clients_per_round", "40", "--set run.clients_per_round="]),
    "not part of a run": (["sweep.x=1"], ["[sweep]", "not part of a run"]),
    "no part of a run either": (["experiment.x=1"], ["[experiment]", "not part of a run"]),
    "K > classes": (["partition.classes_per_client=11"], ["partition.classes_per_client", "10"]),
    "tau < 1": (["method.tau=0"], ["method.tau", "greater than or equal to 1"]),
    "negative rate": (["method.beta=-0.1"], ["method.beta", "-0.1"]),
    "rate beyond float32": (["method.rho=1e300"], ["method.rho", "1e+300", "less than or equal to"]),
    "memory without end": (["engine.memory=inf"], ["engine.memory", "finite"]),
    "rate is nan": (["method.beta=nan"], ["method.beta", "finite"]),
    "unknown method": (["method.name=pflgo"], ["pflgo", "'pflego'", "centralised, ditto"]),
    "unknown data set": (["data.name=digit"], ["digit", "'digits'", "mnist"]),
    "unknown engine": (["engine.kind=warp"], ["warp", "loop"]),
    "missing data files": (["data.name=mnist"], ["train-images-idx3-ubyte", "COTERIE_DATA"]),
    "too many clients": (["partition.clients=3000"], ["partition.clients"]),
    "all new users": (["partition.new_users=1.0"], ["partition.new_users"]),
    "no equals sign": (["method.tau"], ["section.key=value"]),
    "probability missing": (["run.participation=independent"], ["run.probability"]),
    "a setting of another participation": (["run.probability=0.1"], ["run.probability", "independent"]),
    "range beyond the clients": (
        ["run.participation=uniform", "run.clients_range=[4, 99]"],
        ["run.clients_range", "99", "40"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_in_the_recipe(monkeypatch, tmp_path, capsys, case):
    changes, words = BAD[case]
    assert run(monkeypatch, small=changes) == 2
    check_message(capsys, words)
    assert list(tmp_path.iterdir()) == []  # no work was done, nothing was written


def check_message(capsys, words):
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.strip()]
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert "Traceback" not in printed.err
    for word in words:
        assert word in printed.err, word


def test_a_recipe_that_is_not_there_or_not_toml(monkeypatch, tmp_path, capsys):
    assert coterie(monkeypatch, "run", "digit") == 2
    check_message(capsys, ["digit", "'digits'"])
    (tmp_path / "broken.toml").write_text("[method\ntau = 3")
    assert coterie(monkeypatch, "run", "broken.toml") == 2
    check_message(capsys, ["broken.toml", "not TOML"])


def test_a_wrong_flag(monkeypatch, capsys):
    assert coterie(monkeypatch, "run", "--rounds", "3") == 2
    assert "--rounds" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_not_overwritten(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--out", "mine") == 0
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(monkeypatch, "--out", "mine") == 2
    check_message(capsys, ["mine", "already holds a run", "--resume"])
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == before
    (tmp_path / "file").write_text("mine too")
    assert run(monkeypatch, "--out", "file") == 2
    check_message(capsys, ["file"])
    assert (tmp_path / "file").read_text() == "mine too"


def test_a_tilde_that_the_shell_leaves_is_the_home_folder(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run(monkeypatch, "--out=~/run") == 0
    assert coterie(monkeypatch, "run", "--resume", "~/run", "--set", "run.rounds=5") == 0
    assert coterie(monkeypatch, "data", "show", "digits", "--out", "~/page.html") == 0
    capsys.readouterr()
    assert len(load("~/run").history) == 5
    with pytest.raises(UserError, match="already holds a run"):
        train(Federation.from_arrays({"a": ([[0.0], [1.0]], [0, 1])}), out="~/run")
    assert {path.name for path in (tmp_path / "home").iterdir()} == {"run", "page.html"}
    assert not (tmp_path / "~").exists()
    for command in ("run", "sweep", "reproduce", "bench"):
        assert coterie(monkeypatch, command, *["flower"] * (command != "run"), "--out", "~nobody-at-all/x") == 2
        check_message(capsys, ["~nobody-at-all/x", "home folder of a user who does not exist"])


def test_resume_from_what_is_not_a_run(monkeypatch, tmp_path, capsys):
    for folder in ("nowhere", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert coterie(monkeypatch, "run", "--resume", folder) == 2
        check_message(capsys, [folder, "not the folder of a run"])
    assert not (tmp_path / "nowhere").exists()


def test_resume_with_another_recipe(monkeypatch, capsys):
    assert run(monkeypatch, "--out", "mine") == 0
    capsys.readouterr()
    assert run(monkeypatch, "--resume", "mine", small=[*SMALL, "method.beta=0.3"]) == 2
    check_message(capsys, ["method.beta", "0.1", "0.3"])


def test_resume_of_a_finished_run_gives_the_same_summary(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--out", "mine") == 0
    before = without_seal((tmp_path / "mine" / "summary.json").read_text())
    capsys.readouterr()
    assert coterie(monkeypatch, "run", "--resume", "mine", "--json") == 0
    assert json.loads(capsys.readouterr().out) == before


def test_a_folder_with_something_else_in_it(monkeypatch, tmp_path, capsys):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("miaow")
    assert run(monkeypatch, "--out", "photos") == 2
    check_message(capsys, ["photos", "not an empty folder", "another --out"])
    assert [file.name for file in (tmp_path / "photos").iterdir()] == ["cat.jpg"]


def test_a_run_without_its_checkpoints_is_not_started_over(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--out", "mine", "--set", "run.checkpoint_every=2") == 0
    log = (tmp_path / "mine" / "rounds.jsonl").read_text()
    shutil.rmtree(tmp_path / "mine" / "checkpoint")
    capsys.readouterr()
    assert coterie(monkeypatch, "run", "--resume", "mine") == 2
    check_message(capsys, ["checkpoint", "is gone"])
    assert (tmp_path / "mine" / "rounds.jsonl").read_text() == log


def test_a_disk_that_is_full_is_said_so(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("coterie.clients.simulated.save_checkpoint", full)
    assert run(monkeypatch, "--out", "mine") == 1
    assert "No space left on device" in capsys.readouterr().err


def test_a_folder_named_like_markup(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--out", "a [bold]name") == 0
    assert "a [bold]name/report.html" in capsys.readouterr().out


def test_a_loss_that_overflows_is_null_not_nan(monkeypatch, capsys):
    changes = ["--set", "method.server=sgd", "--set", "method.rho=1e38", "--set", "run.rounds=1", "--json"]
    assert run(monkeypatch, *changes) == 0
    summary = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert summary["train_loss"] is None


def test_a_truncated_data_file(monkeypatch, tmp_path, capsys):
    folder = tmp_path / "idx"
    folder.mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x03" + bytes(40))[:-9])
    assert run(monkeypatch, small=["data.name=mnist", f"data.path={folder}"]) == 2
    check_message(capsys, ["ubyte.gz"])


def test_a_folder_whose_name_is_not_text_is_refused_before_training(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--out", str(tmp_path / "\udcff"), "--set", "run.rounds=1") == 2
    check_message(capsys, ["not valid UTF-8"])
    assert not [*tmp_path.glob("*")]


def test_rates_that_diverge_end_with_a_word_and_exit_code_1(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, "--out", "mine", "--set", "method.beta=1e38", "--set", "method.rho=1e38") == 1
    assert "lower the learning rates" in capsys.readouterr().err
