"""The recipes of the PFLEGO paper: its figures and settings, typed once more from its text, and every cell valid."""

import re

import pytest

from coterie import recipe as recipes
from coterie import registry
from coterie.lab.papers.comparison import Row
from coterie.lab.papers.experiment import cells
from coterie.lab.papers.measured import Measured, Percentage
from coterie.lab.papers.sheet import Sheet
from coterie.methods import PFLEGO, FedAvg
from coterie.methods.ditto import Ditto
from coterie.methods.fedbabu import FedBABU
from coterie.methods.fedper import FedPer
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrep import FedRep

EXPERIMENTS = [
    name for name in registry.names("experiment") if name.startswith("pflego-") and name != "pflego-population"
]

# Rows of Table 1: data set, method, then high, medium and no personalization.
TABLE_1 = """
mnist fedper 97.88 ± 0.25 92.83 ± 0.46 87.23 ± 0.33
mnist fedavg 97.54 ± 0.25 92.83 ± 0.52 93.12 ± 0.24
mnist fedprox 97.50 ± 0.26 92.62 ± 0.54 93.02 ± 0.25
mnist ditto 98.25 ± 0.12 94.05 ± 0.47 92.98 ± 0.25
mnist fedrep 98.03 ± 0.23 93.85 ± 0.47 89.28 ± 0.28
mnist fedbabu 97.19 ± 0.33 92.46 ± 0.46 93.98 ± 0.24
mnist pflego 98.70 ± 0.21 95.16 ± 0.32 91.37 ± 0.19
cifar-10 fedper 85.15 ± 1.08 61.01 ± 0.84 37.88 ± 0.59
cifar-10 fedrep 84.03 ± 0.83 66.64 ± 0.67 46.52 ± 0.96
cifar-10 pflego 87.81 ± 0.94 74.83 ± 0.66 63.31 ± 0.61
emnist fedavg 97.29 ± 0.54 68.82 ± 0.29 69.40 ± 0.10
emnist fedprox 97.24 ± 0.54 54.28 ± 0.58 69.20 ± 0.09
emnist pflego 98.79 ± 0.36 77.75 ± 0.33 60.79 ± 0.15
fashion-mnist ditto 96.45 ± 0.47 89.30 ± 0.50 83.48 ± 0.34
fashion-mnist fedbabu 95.68 ± 0.44 88.00 ± 0.72 84.12 ± 0.43
fashion-mnist pflego 96.34 ± 0.43 89.84 ± 0.52 81.49 ± 0.51
"""


def the(name, scale="full", changes=(), **at):
    """The one cell of an experiment that lies there."""
    wanted = {axis: [value] for axis, value in at.items()}
    (variant,) = [
        each
        for each in registry.load("experiment", name)().variants()
        if all(each.at[axis] in values for axis, values in wanted.items())
    ]
    (cell,) = cells(variant, scale, 1, changes)
    return cell


@pytest.mark.parametrize("line", TABLE_1.strip().splitlines())
def test_the_published_figures(line):
    data, method, *figures = line.replace("± ", "").split()
    numbers = [float(figure) for figure in figures]
    for degree, mean, stderr in zip(("high", "medium", "no"), numbers[::2], numbers[1::2], strict=True):
        assert tuple(the("pflego-table1", data=data, degree=degree, method=method).published) == (mean, stderr)


def test_omniglots_published_figures():
    methods = ("fedrep", "fedbabu", "fedprox", "ditto", "fedper", "fedavg", "fedrecon", "pflego")
    accuracy = ((69.65, 2.47), (68.45, 1.53), (48.41, 1.83), (50.88, 1.72), (68.02, 1.74), (49.65, 1.74))
    for method, figures in zip(methods, (*accuracy, (74.06, 1.19), (75.85, 1.21)), strict=True):
        cell = the("pflego-table2", method=method)
        assert tuple(cell.published) == figures
        assert cell.published_seconds is None
    seconds = (10.571, 16.814, 18.632, 26.105, 14.436, 16.553, None, 7.024)
    for method, figure in zip(methods, seconds, strict=True):
        cell = the("pflego-table3", method=method)
        assert cell.published_seconds == figure
        assert cell.published is None


@pytest.mark.parametrize(
    ("data", "degree", "expected"),
    [
        ("mnist", "high", PFLEGO(tau=50, beta=0.189, rho=0.003)),
        ("emnist", "no", PFLEGO(tau=50, beta=0.03, rho=0.003)),
        ("cifar-10", "high", PFLEGO(tau=50, beta=0.002, rho=0.001)),
        ("cifar-10", "medium", PFLEGO(tau=50, beta=0.0189, rho=0.003)),
        ("fashion-mnist", "medium", PFLEGO(tau=50, beta=0.006, rho=0.002)),
        ("mnist", "medium", Ditto(tau=50, eta=0.007, beta=0.007, lam=0.5)),
        ("fashion-mnist", "high", Ditto(tau=50, eta=0.005, beta=0.005, lam=0.25)),
        ("fashion-mnist", "high", FedRep(tau=50, body_steps=5, beta=0.003, momentum=0.999)),
        ("cifar-10", "no", FedPer(tau=50, beta=0.005)),
        ("mnist", "no", FedAvg(tau=50, eta=0.007)),
        ("mnist", "no", FedProx(tau=50, eta=0.007, mu=0.25)),
        ("emnist", "high", FedBABU(tau=50, beta=0.007, momentum=0.9)),
    ],
)
def test_the_settings_of_table_6(data, degree, expected):
    name = registry.name_of("method", expected)
    assert the("pflego-table1", data=data, degree=degree, method=name).recipe.method == expected


@pytest.mark.parametrize(("data", "classes"), [("mnist", 10), ("fashion-mnist", 10), ("emnist", 62), ("cifar-10", 10)])
def test_the_federations_of_table_1(data, classes):
    for degree, held in (("high", 2), ("medium", classes // 2), ("no", classes)):
        tree = the("pflego-table1", data=data, degree=degree, method="fedper").recipe.as_dict()
        assert tree["data"]["name"] == data
        assert tree["partition"].items() >= {"clients": 100, "classes_per_client": held, "new_users": 0.0}.items()
        assert tree["run"].items() >= {"rounds": 200, "clients_per_round": 20, "eval_last": 10}.items()
        assert tree["model"]["head_init"] == "uniform"


def test_methods_that_share_the_head_share_it_over_local_labels():
    for method in ("fedavg", "fedprox", "ditto", "fedbabu"):
        for name, at in (("pflego-table1", {"data": "mnist", "degree": "high"}), ("pflego-table2", {})):
            assert the(name, method=method, **at).recipe.model.labels == "local"


def test_recipes_name_what_they_are_of():
    for name in recipes.available():
        if "experiment" in (tree := recipes.load(name)):
            assert Sheet.of(tree).title
            assert recipes.read(name).as_dict()["method"]["name"] in Sheet.of(tree).methods


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_is_valid_and_has_a_name_of_its_own(name, scale):
    found = [cell for each in registry.load("experiment", name)().variants() for cell in cells(each, scale, 2, ())]
    assert len({cell.name for cell in found}) == len(found) > 2
    for cell in found:
        assert registry.name_of("method", cell.recipe.method) == cell.at["method"]
        assert recipes.Recipe.parse(cell.recipe.as_dict()) == cell.recipe


def test_a_small_scale_is_smaller_and_no_sweep_is_lost_in_it():
    small = the("pflego-table1", "small", data="cifar-10", degree="high", method="fedavg").recipe
    assert small.run.rounds == 10
    assert small.dataset().batches == 1
    assert small.method.tau == 10
    assert the("pflego-figure7", "small", tau="75", method="fedrecon").recipe.method.tau == 75
    assert the("pflego-table3", "small", method="ditto").recipe.run.rounds == 4


def test_changes_come_last():
    at = {"data": "emnist", "degree": "high", "method": "pflego"}
    assert the("pflego-table1", **at).recipe.dataset().split == "official"
    assert the("pflego-table1", changes=["data.split=test-only"], **at).recipe.dataset().split == "test-only"


def test_figures():
    seven = the("pflego-figure7", tau="25", method="pflego").recipe
    assert seven.method == PFLEGO(tau=25, beta=0.007, rho=0.001)
    assert (seven.run.participation, seven.run.clients_range) == ("uniform", [4, 28])
    for method in ("pflego", "fedavg", "fedper"):
        eight = the("pflego-figure8", data="cifar-10", r="60", method=method).recipe
        assert eight.run.clients_per_round == 60
        assert getattr(eight.method, "eta" if method == "fedavg" else "beta") == 0.001
    assert eight.as_dict()["partition"]["classes_per_client"] == 2
    nine = the("pflego-figure9", rho="0.002", beta="0.03")
    assert (nine.recipe.method.rho, nine.recipe.method.beta) == (0.002, 0.03)
    assert nine.published is None


def test_averaging_has_the_rate_of_the_exact_step():
    at = {"data": "mnist", "degree": "high"}
    once = the("pflego-averaging", aggregation="weights-1-step", **at)
    assert once.recipe.method == FedRep(tau=50, body_steps=1, beta=0.189, momentum=0.0)
    assert once.published is None
    sgd = the("pflego-averaging", aggregation="gradients-sgd", **at)
    assert sgd.recipe.method == PFLEGO(beta=0.189, rho=0.189, server="sgd", head_step="exact")
    adam = the("pflego-averaging", aggregation="gradients-adam", **at)
    assert adam.recipe == the("pflego-table1", method="pflego", **at).recipe
    assert tuple(adam.published) == (98.70, 0.21)


def test_one_class_a_client_is_told_from_all_the_others():
    for method in ("fedavg", "pflego"):
        tree = the("pflego-k1", data="mnist", method=method).recipe.as_dict()
        assert tree["partition"]["classes_per_client"] == 1
        assert tree["model"]["labels"] == "global"


def test_the_fair_grid_moves_every_rate_of_a_client_and_leaves_the_rest():
    at = {"data": "mnist", "degree": "medium", "rate": "0.06"}
    cell = the("pflego-fair", method="ditto", **at)
    assert cell.recipe.method == Ditto(tau=50, eta=0.06, beta=0.06, lam=0.5)
    assert cell.recipe.as_dict()["partition"]["validation"] == 0.1
    assert cell.published is None  # it trains on nine tenths of what the published runs had
    assert the("pflego-fair", method="fedprox", **at).recipe.method == FedProx(tau=50, eta=0.06, mu=0.25)
    assert the("pflego-fair", method="fedrecon", **at).recipe.method.beta == 0.06


def test_of_the_fair_grid_validation_chooses():
    def row(method, rate, validation, test):
        at = {"data": "mnist", "degree": "high", "method": method, "rate": rate}
        run = Measured(Percentage(test, 0.1), None, None, Percentage(validation, 0.1), 0.5, 1.0, 1.0)
        return Row(at, "participants", None, None, [run], "")

    rows = [row("fedavg", "0.007", 90, 99), row("fedavg", "0.03", 91, 95), row("pflego", "0.189", 92, 93)]
    table = registry.load("experiment", "pflego-fair")().table(rows)
    assert [line[:5] for line in table.lines] == [
        ["mnist", "high", "fedavg", "0.03", "95.00 ± 0.10"],
        ["mnist", "high", "pflego", "0.189", "93.00 ± 0.10"],
    ]
    assert table.notes[-1].endswith("so another rate may be better: mnist high fedavg.")


# Rows of Table 1 in the conference version: data set, method, then high, medium and no personalization.
CONFERENCE = """
mnist fedper 97.88 ± 0.25 92.83 ± 0.46 87.23 ± 0.33
mnist fedavg 97.54 ± 0.25 92.83 ± 0.52 93.12 ± 0.24
mnist pflego 98.43 ± 0.21 94.22 ± 0.43 90.68 ± 0.17
cifar-10 fedper 85.15 ± 1.08 61.01 ± 0.84 37.88 ± 0.59
cifar-10 fedavg 85.18 ± 0.96 64.53 ± 0.75 61.33 ± 0.52
cifar-10 pflego 87.81 ± 0.94 74.83 ± 0.66 58.98 ± 0.81
emnist fedper 97.78 ± 0.51 74.19 ± 0.36 48.12 ± 0.23
emnist fedavg 97.29 ± 0.54 68.82 ± 0.29 69.40 ± 0.10
emnist pflego 98.49 ± 0.43 74.43 ± 0.40 55.42 ± 0.19
fashion-mnist fedper 96.14 ± 0.35 88.22 ± 0.64 77.44 ± 0.59
fashion-mnist fedavg 96.35 ± 0.47 87.51 ± 0.73 83.59 ± 0.35
fashion-mnist pflego 96.34 ± 0.43 89.84 ± 0.52 81.49 ± 0.51
"""


def test_the_figures_of_both_versions_are_shown():
    experiment, rows = registry.load("experiment", "pflego-table1")(), {}
    for variant in experiment.variants():
        (cell,) = cells(variant, "full", 1, ())
        rows[tuple(cell.at.values())] = Row(cell.at, cell.protocol, cell.published, None, [], "")
    table = experiment.table([*rows.values()])
    shown = dict(re.findall(r"(\S+ \S+) (\S+ ± \S+) \(here", table.notes[-1]))
    assert len(shown) == 7
    for line in CONFERENCE.strip().splitlines():
        data, method, *figures = line.replace(" ± ", "±").split()
        for degree, figure in zip(("high", "medium", "no"), figures, strict=True):
            journal = str(rows[data, degree, method].published)
            differs = method == "pflego" and f"{data} {degree}" in shown
            assert (shown[f"{data} {degree}"] if differs else journal) == figure.replace("±", " ± ")
    assert "mnist high 98.43 ± 0.21 (here 98.70 ± 0.21)" in table.notes[-1]
    assert not any("conference" in note for note in experiment.table([rows["mnist", "high", "fedper"]]).notes)
