"""`coterie reproduce scafflix-table2`: its columns, what they have in common, and what is made of the runs."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import coterie, in_folder
from coterie import registry
from coterie.lab.papers.campaign import Campaign
from coterie.lab.papers.comparison import Row
from coterie.lab.papers.curve import Curve, Point
from coterie.lab.papers.measured import Measured, Percentage
from coterie.lab.papers.scafflix_table2 import PUBLISHED, RATES, Table2, compared
from coterie.prepare import prepare
from coterie.report.units import DASH
from coterie.settings import Epochs, length

HERE = Path("nowhere")
DATA = ("fashion-mnist", "cifar-100")


def campaign(scale="full", **wanted):
    return Campaign("scafflix-table2", wanted, scale, 1, HERE)


def of(work, **at):
    return [row[0] for row in work.rows if all(row[0].at[axis] == value for axis, value in at.items())]


def test_the_columns_of_each_kind():
    found = dict.fromkeys((cell.at["kind"], cell.at["column"], cell.at["method"]) for cell in of(campaign()))
    named = [("as-named", "FedPAC", "fedpac")] if "fedpac" in registry.names("method") else []
    assert list(found) == [
        ("both", "Ditto", "ditto"),
        ("as-run", "FedSR-FT", "local"),
        ("as-run", "FedPAC", "fedrep"),
        ("as-named", "FedSR-FT", "fedsr"),
        *named,
        ("both", "FedCR", "fedcr"),
        ("both", "Scafflix", "scafflix"),
        ("beside", "FedAvg-FT", "fedavg"),
        ("beside", "Local", "local"),
    ]
    assert {cell.at["data"] for cell in of(campaign())} == {"fashion-mnist"}
    assert {cell.at["data"] for cell in of(campaign(data=["cifar-100"]))} == {"cifar-100"}


@pytest.mark.parametrize("data", DATA)
def test_all_columns_have_the_same_clients_and_work(data):
    cells = of(campaign(data=[data]))
    latent = {"FedSR-FT": 256, "FedCR": 512}
    for cell in cells:
        recipe, method = cell.recipe, cell.recipe.method
        assert recipe.partition == cells[0].recipe.partition
        assert recipe.run == cells[0].recipe.run
        assert (recipe.run.rounds, recipe.run.clients_per_round) == (500, 10)
        assert (recipe.partition.clients, recipe.partition.classes_per_client, recipe.partition.test) == (100, 5, 0.3)
        assert replace(recipe.model, latent=0) == cells[0].recipe.model
        assert recipe.model.latent == latent.get(cell.at["column"], 0)
        assert recipe.model.variant == ("cifar" if data == "cifar-100" else data)
        assert method.batch_size == 48
        if cell.at["method"] == "scafflix":
            assert (method.alpha, method.p, recipe.eval.adapt_steps) == (0.3, 0.3, 0)
            continue
        assert length(recipe.eval.adapt_steps) == 10
        assert isinstance(length(recipe.eval.adapt_steps), Epochs)
        if cell.at["method"] == "fedpac":  # it does not clip, and counts the epochs of its head by themselves
            assert (method.head_steps, method.tau, method.lam) == ("9 epochs", "1 epoch", 1)
            continue
        assert method.clip == 10
        assert method.tau == (10 if cell.at["method"] == "fedrep" else "10 epochs")


@pytest.mark.parametrize("data", DATA)
def test_a_rate_is_that_of_the_instructions_or_one_of_a_grid_for_all(data):
    names = {
        "ditto": ("eta", "beta"),
        "fedpac": ("eta_f", "eta_g"),
        "fedrep": ("beta",),
        "local": ("beta",),
        "scafflix": ("gamma",),
    }
    cells, found = of(campaign(data=[data])), {}
    for cell in cells:
        for name in names.get(cell.at["method"], ("eta",)):
            assert getattr(cell.recipe.method, name) == float(cell.at["rate"])
        found.setdefault((cell.at["column"], cell.at["kind"]), []).append(float(cell.at["rate"]))
    given = {"Ditto": 0.5, "FedSR-FT": 0.005, "FedPAC": 0.01, "FedCR": 0.05, "FedAvg-FT": 0.01}
    for (column, _), rates in found.items():
        assert rates == ([given[column]] if data == "cifar-100" and column in given else list(RATES))


def test_the_recipes_differ_only_where_their_data_do():
    one, other = (of(campaign(data=[data]), method="scafflix")[0].recipe.as_dict() for data in DATA)
    assert {section for section in one if one[section] != other[section]} == {"data", "model"}


def row(column, rate, validation, test, kind="both", method="ditto"):
    figure = Percentage(test, 0.3)
    run = Measured(figure, figure, figure, Percentage(validation, 0.1), 1.0, 1.0, 1.0)
    at = {"data": "fashion-mnist", "kind": kind, "column": column, "method": method, "rate": rate}
    return Row(at, "adapted", None, None, [run], "")


def test_published_figures_stand_beside_the_rate_that_validation_chose():
    rows = [
        row("FedPAC", "0.01", 80.0, 90.0, "as-run", "fedrep"),
        row("FedPAC", "0.05", 85.0, 82.0, "as-run", "fedrep"),
        row("FedAvg-FT", "0.05", 70.0, 71.0, "beside", "fedavg"),
    ]
    table = compared(rows)
    assert [line[1:] for line in table.lines] == [
        ["FedPAC", "as-run", "fedrep", "0.05", "85.00 ± 0.10", "82.00 ± 0.30", "89.49"],
        ["FedAvg-FT", "beside", "fedavg", "0.05", "70.00 ± 0.10", "71.00 ± 0.30", DASH],
    ]
    assert {column for columns in PUBLISHED.values() for column in columns} <= set(PUBLISHED["cifar-100"])


def test_the_figure_has_one_panel_with_a_line_for_each_column():
    curve = Curve([Point(10, 50.0, 1.0, 100), Point(20, 60.0, 0.5, 200)])
    rows = [
        row("FedPAC", "0.01", 80.0, 90.0, "as-run", "fedrep"),
        row("FedPAC", "0.05", 85.0, 82.0, "as-run", "fedrep"),
        row("FedPAC", "0.05", 70.0, 71.0, "as-named", "fedpac"),
    ]
    rows = [replace(each, runs=[run._replace(curve=curve) for run in each.runs]) for each in rows]
    ((accuracies, _),) = Table2().figure(rows)
    assert [line.name for line in accuracies.lines] == [
        "FedPAC, as-run, fedrep, rate = 0.05",
        "FedPAC, as-named, fedpac, rate = 0.05",
    ]


def write_cifar(folder, rows):
    """Write random images in the layout of CIFAR-100's binary files."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name, per_class in (("train.bin", rows), ("test.bin", max(1, rows // 5))):
        fine = np.repeat(np.arange(100, dtype=np.uint8), per_class)[:, None]
        pixels = rng.integers(256, size=(len(fine), 3072), dtype=np.uint8)
        (folder / name).write_bytes(np.hstack([fine // 5, fine, pixels]).tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"class-{i}" for i in range(100)))


def test_cifar_100_runs_on_files_of_its_format(tmp_path, monkeypatch):
    """A stand-in with random pixels, through the command, for a method with a random representation."""
    write_cifar(tmp_path / "files", 10)
    options = ["--data", "cifar-100", "--methods", "fedcr,fedrep", "--set", f"data.path={tmp_path / 'files'}"]
    options += ["--set", "run.rounds=1", "--set", "model.hidden=4", "--set", "eval.clients=2"]
    with in_folder(tmp_path, monkeypatch):
        assert coterie(monkeypatch, "reproduce", "scafflix-table2", *options) == 0
    table = json.loads((tmp_path / "runs/reproduce/scafflix-table2-small/table.json").read_text())
    assert [(each["column"], each["state"]) for each in table["rows"]] == [
        ("FedPAC", "finished"),
        ("FedCR", "finished"),
    ]


def test_ten_clients_of_a_stand_in_have_the_shares_of_the_paper(tmp_path):
    write_cifar(tmp_path / "files", 10)
    (cell,) = of(campaign(data=["cifar-100"], method=["fedsr"]))
    recipe = replace(cell.recipe, data=replace(cell.recipe.data, path=str(tmp_path / "files")))
    federation = recipe.federation()
    sizes = {split: set(federation.sizes(split).tolist()) for split in federation.splits}
    assert sizes["test"] == {4}
    assert {len(federation.classes.row(i)) for i in range(100)} == {5}
    assert prepare(recipe, federation).clients.load.work.task.num_outputs == 100
