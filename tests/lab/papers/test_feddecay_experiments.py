"""The recipes of the FedDecay paper: its figures and settings, typed once more from its text, and every cell valid."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from coterie import recipe as recipes
from coterie import registry
from coterie.lab.papers.campaign import Campaign
from coterie.lab.papers.comparison import Row
from coterie.lab.papers.experiment import cells
from coterie.lab.papers.measured import Measured
from coterie.lab.papers.user_tables import over_users, picks
from coterie.lab.papers.users import Over, Picked
from coterie.methods.ditto import Ditto
from coterie.methods.feddecay import FedDecay
from coterie.methods.pfedme import PFedMe
from coterie.settings import length

EXPERIMENTS = [name for name in registry.names("experiment") if name.startswith("feddecay-")]
RATES_OF = {"per-fedavg": ("alpha", "beta"), "pfedme": ("beta", "eta"), "ditto": ("eta", "beta")}
RESULTS = Path(__file__).parents[3] / "results"

# Rows of Tables 3 (new) and 4 (existing): mean, bottom decile and deviation on FEMNIST and on SST-2, then PubMed, which
# has a single new user.
NEW = """
ditto 0.5672 0.4444 0.0921 0.4746 0.0000 0.4010 0.2442
fedem 0.9175 0.8333 0.0526 0.7404 0.6379 0.2141 0.7879
pfedme 0.9036 0.8438 0.0751 0.7785 0.6406 0.1179 0.7932
fomaml 0.8989 0.8113 0.0604 0.7680 0.6667 0.1057 0.7950
fedavg 0.9055 0.8491 0.0530 0.7680 0.6667 0.1057 0.7914
feddecay 0.9152 0.8421 0.0485 0.8101 0.6724 0.1087 0.8039
"""
EXISTING = """
ditto 0.9031 0.8333 0.0563 0.5949 0.0417 0.3449 0.8754 0.8465 0.0236
fedem 0.8952 0.8200 0.0806 0.7808 0.5000 0.1845 0.8822 0.8478 0.0322
pfedme 0.9280 0.8750 0.0694 0.7699 0.6087 0.1672 0.8666 0.8205 0.0334
fomaml 0.8951 0.8140 0.0636 0.7654 0.5556 0.1634 0.8614 0.8292 0.0284
fedavg 0.8851 0.8039 0.0750 0.7654 0.5556 0.1634 0.8671 0.8342 0.0267
feddecay 0.8986 0.8214 0.0711 0.7815 0.5556 0.1727 0.8722 0.8490 0.0233
"""
# Rows of Tables 6 and 7, over three seeds: FEMNIST existing and new, PubMed existing and its new user.
SEEDS = """
fomaml 0.8971 0.8223 0.0687 0.9044 0.8371 0.0578 0.8597 0.8234 0.0293 0.7855
fedavg 0.8948 0.8227 0.0701 0.9095 0.8318 0.0563 0.8666 0.8313 0.0328 0.7914
feddecay 0.8993 0.8285 0.0688 0.9127 0.8294 0.0545 0.8704 0.8420 0.0244 0.7950
"""


def the(name, scale="full", **at):
    """The one cell of an experiment that lies there."""
    variants = registry.load("experiment", name)().variants()
    (variant,) = [each for each in variants if at.items() <= each.at.items()]
    (cell,) = cells(variant, scale, 1, ())
    return cell


def read(table):
    for line in table.strip().splitlines():
        method, *figures = line.split()
        yield method, [100 * float(figure) for figure in figures]


@pytest.mark.parametrize(("table", "kind"), [(NEW, "new"), (EXISTING, "existing")])
def test_the_published_figures_of_one_run(table, kind):
    for method, figures in read(table):
        for data, some in (("femnist", figures[:3]), ("sst2", figures[3:6]), ("pubmed", figures[6:])):
            assert the(f"feddecay-{data}", method=method).users[kind] == pytest.approx(some), (data, method)


def test_the_published_figures_over_seeds():
    for method, figures in read(SEEDS):
        for data, some in (("femnist", figures[:6]), ("pubmed", figures[6:])):
            users = the(f"feddecay-{data}", method=method).users
            assert [*users["existing_over_seeds"], *users["new_over_seeds"]] == pytest.approx(some)
    assert "existing_over_seeds" not in the("feddecay-pubmed", method="ditto").users


def test_fedbn_is_compared_where_it_is_not_fedavg():
    assert the("feddecay-femnist", method="fedbn").users["existing"] == [91.82, 85.71, 5.48]
    assert the("feddecay-pubmed", method="fedbn").users == {"existing": [87.88, 85.40, 2.48], "new": [80.04]}
    for name in ("feddecay-sst2", "feddecay-writers"):  # no BatchNorm in their networks
        assert "fedbn" not in {each.at["method"] for each in registry.load("experiment", name)().variants()}


# Rows of Table 5: existing and new users on FEMNIST, SST-2 and PubMed.
TABLE_5 = """
0.0 88.51 90.55 73.60 80.30 86.70 79.14
0.2 89.86 91.52 67.01 59.02 85.67 79.68
0.4 89.74 90.77 69.42 67.26 87.22 80.39
0.6 89.76 90.93 78.15 81.01 86.65 79.86
0.8 nan nan 74.64 76.14 86.59 79.32
1.0 87.91 89.78 76.54 76.80 86.29 79.50
"""


@pytest.mark.parametrize("row", [line.split() for line in TABLE_5.strip().splitlines()], ids=lambda row: row[0])
def test_table_5(row):
    beta, figures = row[0], list(map(float, row[1:]))
    for place, data in enumerate(("femnist", "sst2", "pubmed")):
        cell = the("feddecay-beta", data=data, decay="exponential", beta=beta)
        existing, new = figures[2 * place : 2 * place + 2]
        printed = {} if math.isnan(new) else {"existing": [existing], "new": [new]}  # Hyperband stopped the run
        assert cell.users == printed
        assert (cell.recipe.method.beta, cell.recipe.method.decay) == (float(beta), "exponential")
        assert cell.recipe.method.users == "equal"
        assert cell.recipe.as_dict()["data"]["name"] == data
    main = the("feddecay-pubmed", method="feddecay").recipe.method
    assert (cell.recipe.method.eta, cell.recipe.method.tau) == (main.eta, main.tau)


def test_linear_decay_is_not_run_where_it_is_exponential_decay():
    every = registry.load("experiment", "feddecay-beta")().variants()
    found = [each.at["beta"] for each in every if each.at["data"] == "sst2"]
    assert found == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0", "0.2", "0.4", "0.6", "0.8"]
    cell = the("feddecay-beta", data="femnist", decay="linear", beta="0.4")
    assert cell.recipe.method.factors(2)[1] == pytest.approx(0.4)
    assert cell.users == {}


def test_a_row_is_compared_with_the_reference_of_its_own_data_set():
    over = {data: Over(mean, mean, 0.0) for data, mean in (("a", 50.0), ("b", 80.0))}

    def row(data, beta, more):
        found = over[data]._replace(mean=over[data].mean + more)
        picked = Picked(1, 50.0, found, found, found, found, 0, 0)
        run = Measured(None, None, None, None, None, 1.0, 1.0, picked=picked)
        return Row({"data": data, "beta": beta}, "adapted", None, None, [run], "", seeds=[0])

    table = over_users([row("a", "0", 1.0), row("a", "1", 0.0), row("b", "0", 2.0), row("b", "1", 0.0)], {"beta": "1"})
    column = table.headings.index("against 1")
    assert [line[column] for line in table.lines[:4]] == ["+1.00", "–", "+2.00", "–"]  # noqa: RUF001


# Rows of Tables 8 to 10: epochs, rate, and regularization or decay, on FEMNIST, SST-2 and PubMed. Linear decay is
# printed as 1 - beta.
TUNED = """
ditto 3 0.10 0.50 | 3 0.05 0.8 | 1 0.005 0.1
fedbn 3 0.01 - | - - - | 3 0.005 -
fedem 3 0.10 - | 3 0.05 - | 3 0.500 -
pfedme 3 0.50 0.05 | 3 0.05 0.8 | 3 0.500 0.5
fomaml 3 0.50 - | 3 0.05 - | 3 0.500 -
fedavg 1 0.10 - | 3 0.05 - | 1 0.500 -
exponential 3 0.05 0.2 | 3 0.05 0.6 | 3 0.500 0.4
linear 3 0.10 0.6 | 3 0.05 0.4 | 3 0.500 0.4
"""


@pytest.mark.parametrize("line", TUNED.strip().splitlines(), ids=lambda line: line.split()[0])
def test_the_settings_of_tables_8_to_10(line):
    name, rest = line.split(maxsplit=1)
    decay = name if name in ("exponential", "linear") else "none"
    for data, printed in zip(("femnist", "sst2", "pubmed"), rest.split("|"), strict=True):
        epochs, rate, own = printed.split()
        if epochs == "-":
            continue
        counts = "none" if decay == "none" else "step" if data == "pubmed" else "epoch"
        at = {"method": "feddecay" if decay != "none" else name, "decay": decay, "counts": counts}
        method = the("feddecay-tuned", data=data, **at).recipe.method
        assert int(length(method.tau)) == int(epochs)
        assert isinstance(method.tau, str) == (data != "pubmed")  # where an epoch is one step
        for field in RATES_OF.get(at["method"], ("eta",)):
            assert getattr(method, field) == float(rate)
        if decay != "none":
            assert method.beta == pytest.approx(1 - float(own) if decay == "linear" else float(own))
            assert (method.decay, method.unit) == (decay, counts)
        elif own != "-":
            assert method.lam == float(own)
        batch = {"femnist": 32, "sst2": 64 if name == "pfedme" else 16, "pubmed": 0}[data]
        assert method.batch_size == batch
        assert name != "pfedme" or method.inner == (1 if data == "pubmed" else 3)
        assert getattr(method, "users", "equal") == "equal" or name == "fedem"


def test_both_readings_of_k_are_rows_of_one_table():
    for data in ("femnist", "sst2"):
        epochs, steps = (
            the("feddecay-tuned", data=data, method="feddecay", decay="exponential", counts=unit).recipe
            for unit in ("epoch", "step")
        )
        assert replace(epochs.method, unit="step") == steps.method
        assert epochs.run.rounds == {"femnist": 1000, "sst2": 500}[data]
    assert the("feddecay-tuned", data="pubmed", method="feddecay", decay="exponential").recipe.run.rounds == 500
    assert the("feddecay-sst2", method="pfedme").recipe.method.batch_size == 64


def test_the_settings_of_table_8():
    assert the("feddecay-femnist", method="feddecay").recipe.method == FedDecay(
        tau="3 epochs", eta=0.05, beta=0.2, batch_size=32
    )
    assert the("feddecay-femnist", method="ditto").recipe.method == Ditto(
        tau="3 epochs", eta=0.1, beta=0.1, lam=0.5, batch_size=32
    )
    assert the("feddecay-femnist", method="pfedme").recipe.method == PFedMe(
        tau="3 epochs", inner=3, beta=0.5, eta=0.5, lam=0.05, batch_size=32
    )


@pytest.mark.parametrize(
    ("data", "clients", "per_round", "model"),
    [("femnist", 200, 32, "cnn-femnist"), ("sst2", 50, 8, "bert-tiny"), ("pubmed", 5, None, "gin")],
)
def test_the_federations(data, clients, per_round, model):
    recipe = the(f"feddecay-{data}", method="feddecay").recipe
    tree = recipe.as_dict()
    assert tree["partition"].items() >= {"clients": clients, "new_users": 0.2}.items()
    assert recipe.run.clients_per_round == per_round
    assert tree["model"]["name"] == model
    assert the(f"feddecay-{data}", method="feddecay").protocol == "adapted"


def test_there_is_something_to_validate_on():
    for name in ("feddecay-femnist", "feddecay-sst2", "feddecay-writers"):
        assert the(name, method="fedavg").recipe.as_dict()["partition"]["validation"] > 0
    # PubMed's own are published with it, and a share beside them would be refused.
    assert the("feddecay-pubmed", method="fedavg").recipe.as_dict()["partition"]["validation"] == 0


@pytest.mark.parametrize("scale", ["small", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_is_valid_and_has_a_name_of_its_own(name, scale):
    found = [cell for each in registry.load("experiment", name)().variants() for cell in cells(each, scale, 2, ())]
    assert len({cell.name for cell in found}) == len(found) > 2
    for cell in found:
        assert registry.name_of("method", cell.recipe.method) == cell.at["method"]
        assert recipes.Recipe.parse(cell.recipe.as_dict()) == cell.recipe


@pytest.mark.parametrize("data", ["pubmed", "writers"])
def test_the_grid_is_as_wide_for_every_method_and_has_seeds_of_its_own(data):
    name = f"feddecay-{data}-grid"
    found = [cell for each in registry.load("experiment", name)().variants() for cell in cells(each, "full", 2, ())]
    methods = {each.at["method"] for each in registry.load("experiment", f"feddecay-{data}")().variants()}
    assert {cell.at["method"] for cell in found} == methods
    for method in methods:
        own = [cell for cell in found if cell.at["method"] == method]
        for rate in RATES_OF.get(method, ("eta",)):
            assert {getattr(cell.recipe.method, rate) for cell in own} == {0.05, 0.15, 0.5}
        assert {cell.recipe.run.seed for cell in own} == {100, 101}
        assert {cell.recipe.run.rounds for cell in own} == {the(f"feddecay-{data}", method=method).recipe.run.rounds}
    beta = {(cell.recipe.method.eta, cell.recipe.method.beta) for cell in found if cell.at["method"] == "feddecay"}
    assert beta == {(rate, beta) for rate in (0.05, 0.15, 0.5) for beta in (0.2, 0.6)}


def picked(data):
    """The row of each method that validation picked, from the stored results of the grid."""
    folder = RESULTS / f"feddecay-{data}-grid"
    if not (folder / "runs.json").exists():
        pytest.skip("the results do not come with an installed package")
    campaign = Campaign(f"feddecay-{data}-grid", {}, "full", 2, folder)
    return picks([campaign._row(row) for row in campaign.rows])


@pytest.mark.parametrize("data", ["pubmed", "writers"])
def test_the_recipes_have_what_validation_picked(data):
    for method, row in picked(data).items():
        options = the(f"feddecay-{data}-grid", **row.at).recipe.method
        assert the(f"feddecay-{data}", method=method).recipe.method == options


def test_how_many_picks_lie_at_an_end_of_the_rates():
    """As the page of results says of PubMed. A wider grid might move these picks."""
    ends = {method: row.at["rate"] for method, row in picked("pubmed").items() if row.at["rate"] != "0.15"}
    assert (len(ends), len(picked("pubmed"))) == (8, 10)
    assert ends["fomaml"] == "0.05"


def test_weights_and_beta_are_all_that_differs_from_fedavg_on_pubmed():
    sizes, equal = (the("feddecay-pubmed-weights", method="fedavg", weights=each).recipe for each in ("sizes", "equal"))
    assert sizes == the("feddecay-pubmed", method="fedavg").recipe
    assert equal.method == replace(sizes.method, users="equal")
    selected, other = (the("feddecay-pubmed-weights", beta=each).recipe for each in ("0.2", "0.8"))
    assert selected == the("feddecay-pubmed", method="feddecay").recipe
    assert other.method == replace(selected.method, beta=0.8)
    assert (other.method.eta, other.method.tau, other.method.users) == (equal.method.eta, equal.method.tau, "equal")


def test_both_readings_of_decay_are_compared_with_fedavg_on_writers():
    name, writers = "feddecay-writers-epochs", the("feddecay-writers", method="feddecay").recipe
    assert the(name, method="fedavg").recipe == the("feddecay-writers", method="fedavg").recipe
    assert the(name, unit="step", rate="0.15").recipe == writers
    for rate, beta in ((0.15, 0.6), (0.15, 0.8), (0.5, 0.6), (0.5, 0.8)):
        found = the(name, unit="epoch", rate=str(rate), beta=str(beta)).recipe
        assert found.method == replace(writers.method, unit="epoch", eta=rate, beta=beta)
