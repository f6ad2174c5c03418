from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie import recipe, registry
from coterie.data.federation import Federation
from coterie.errors import UserError
from coterie.lab.papers.sheet import Sheet
from coterie.methods import PFLEGO, FedAvg
from coterie.models.mlp import MLP
from coterie.recipe import Recipe, read
from coterie.server.participation import Fixed, Independent, Unequal, Uniform
from coterie.settings import settings

FILE = """
[data]
name = "digits"

[method]
name = "pflego"
tau = 7
rho = 0.5

[run]
rounds = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(FILE)
    return path


def run_settings(**options: Any) -> recipe.RunSettings:
    return Recipe.parse({"run": options}).run


# -- what is read


def test_an_empty_recipe_has_the_usual_parts_and_no_data() -> None:
    usual = Recipe.parse({})
    assert usual.method == PFLEGO()
    assert usual.data is None
    assert usual.partition is None
    assert usual.as_dict().keys() == {"model", "method", "aggregate", "run", "population", "eval", "stop", "engine"}


def test_the_last_round_alone_is_evaluated_at_the_end_unless_told_otherwise() -> None:
    assert run_settings().eval_last == 1
    assert run_settings(eval_last=10).eval_last == 10


def test_data_bring_a_partition() -> None:
    assert Recipe.parse({"data": {"name": "digits"}}).as_dict()["partition"]["name"] == "classes"


def test_a_file_is_read(file: Path) -> None:
    assert read(file).method == PFLEGO(tau=7, rho=0.5)
    assert read(str(file)).run.rounds == 3


def test_data_that_come_with_their_clients_keep_them() -> None:
    for name, partition in (("mnist-writers", "natural"), ("omniglot", "natural"), ("digits", "classes")):
        assert Recipe.parse({"data": {"name": name}}).as_dict()["partition"]["name"] == partition
    own = Recipe.parse({"data": {"name": "mnist-writers"}, "partition": {"name": "iid"}})
    assert own.as_dict()["partition"]["name"] == "iid"


def test_every_default_is_spelled_out() -> None:
    tree = Recipe.parse({"data": {"name": "digits"}, "run": {"clients_per_round": 4}}).as_dict()
    assert tree["method"] == {
        "name": "pflego",
        "tau": 50,
        "beta": 0.006,
        "rho": 0.002,
        "rho_decay": 0.0,
        "solver": "gd",
        "server": "adam",
        "head_step": "algorithm1",
        "alpha": "all",
        "mu": 0.0,
    }
    assert tree["partition"] == {
        "name": "classes",
        "clients": 50,
        "classes_per_client": 2,
        "new_users": 0.2,
        "validation": 0.0,
    }
    assert tree["model"].items() >= {"name": "mlp", "hidden": [200], "buffers": "average"}.items()
    assert tree["run"].items() >= {"rounds": 200, "clients_per_round": 4, "participation": "fixed", "seed": 0}.items()
    assert "probability" not in tree["run"]  # TOML has no null
    assert tree["engine"] == {
        "kind": "auto",
        "dtype": "float32",
        "device": "auto",
        "deterministic": True,
        "threads": 0,
        "memory": 2.0,
        "address": "",
        "workers": 0,
    }


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"data": {"name": "digits"}, "partition": {"clients": 7, "new_users": 0.0}},
        {"method": {"name": "fedavg", "eta": 0.5}, "model": {"name": "logreg", "labels": "local"}},
        {"run": {"participation": "uniform", "clients_range": [2, 5]}, "engine": {"kind": "loop"}},
        {"run": {"participation": "independent", "probability": 0.25}, "model": {"hidden": []}},
    ],
)
def test_a_recipe_written_out_and_read_back_is_the_same(tree: dict[str, Any]) -> None:
    first = Recipe.parse(tree)
    assert Recipe.parse(first.as_dict()) == first
    assert Recipe.parse(first.as_dict()).as_dict() == first.as_dict()


@pytest.mark.parametrize("name", list(recipe.available()))
def test_every_recipe_that_comes_with_coterie_is_valid(name: str) -> None:
    ready = read(name)
    assert ready.data is not None
    assert Recipe.parse(ready.as_dict()) == ready


def test_the_recipes_in_the_repository_are_the_ones_that_come_with_coterie() -> None:
    folder = Path(__file__).parents[1] / "recipes"
    assert {path.name for path in recipe.available().values()} == {path.name for path in folder.rglob("*.toml")}
    assert "digits" in recipe.available()


def test_a_recipe_deals_its_data_by_its_seed() -> None:
    tree = {"data": {"name": "digits"}, "partition": {"clients": 20}}
    federation = Recipe.parse(tree).federation()
    assert len(federation.ids) == 20
    assert federation.sizes("train").sum() + federation.sizes("test").sum() == 1797
    assert federation.fingerprint() == Recipe.parse(tree).federation().fingerprint()
    assert federation.fingerprint() != Recipe.parse({**tree, "run": {"seed": 1}}).federation().fingerprint()


def test_without_data_there_is_no_federation() -> None:
    with pytest.raises(UserError, match=r"no \[data\]"):
        Recipe.parse({}).federation()


# -- changes


@pytest.mark.parametrize(
    ("change", "section", "key", "expected"),
    [
        ("method.tau=3", "method", "tau", 3),
        ("method.tau = 3 ", "method", "tau", 3),
        ("method.tau=1_000", "method", "tau", 1000),
        ("method.rho=1e-3", "method", "rho", 0.001),
        ("method.rho=2", "method", "rho", 2.0),
        ("method.server=sgd", "method", "server", "sgd"),
        ('method.server="sgd"', "method", "server", "sgd"),
        ("model.hidden=[30, 20]", "model", "hidden", [30, 20]),
        ("model.hidden=[]", "model", "hidden", []),
        ("run.clients_range=[2,3]", "run", "clients_range", [2, 3]),
        ("engine.dtype=float64", "engine", "dtype", "float64"),
    ],
)
def test_a_changed_value_is_read_as_toml_or_as_a_bare_word(
    file: Path, change: str, section: str, key: str, expected: Any
) -> None:
    changed = getattr(getattr(read(file, [change]), section), key)
    assert changed == expected
    assert type(changed) is type(expected)


def test_a_change_leaves_the_rest_of_its_section_alone(file: Path) -> None:
    assert read(file, ["method.beta=0.1"]).method == PFLEGO(tau=7, rho=0.5, beta=0.1)


def test_the_last_of_two_changes_wins(file: Path) -> None:
    assert read(file, ["method.tau=1", "method.tau=2"]).method == PFLEGO(tau=2, rho=0.5)


def test_a_section_that_the_file_does_not_have_can_be_changed(file: Path) -> None:
    assert read(file, ["eval.adapt_steps=5"]).eval.adapt_steps == 5


@pytest.mark.parametrize("order", [1, -1])
def test_another_method_drops_the_files_options_and_takes_its_own(file: Path, order: int) -> None:
    changes = ["method.name=fedavg", "method.eta=0.25"][::order]
    assert read(file, changes).method == FedAvg(eta=0.25)


def test_the_same_method_keeps_the_files_options(file: Path) -> None:
    assert read(file, ["method.name=pflego"]).method == PFLEGO(tau=7, rho=0.5)


def test_naming_the_usual_method_keeps_the_options_of_a_file_that_leaves_it_out(file: Path) -> None:
    file.write_text("[method]\ntau = 7\n")
    assert read(file, ["method.name=pflego"]).method == PFLEGO(tau=7)


def test_a_change_to_what_is_not_a_section_is_refused(file: Path) -> None:
    file.write_text("run = 3\n")
    with pytest.raises(UserError, match="run = 3 must be a section"):
        read(file, ["run.rounds=2"])


@pytest.mark.parametrize("change", ["method.tau", "tau=3", "method.=3", "", "=", "method.tau:3"])
def test_a_change_needs_a_section_a_key_and_a_value(file: Path, change: str) -> None:
    with pytest.raises(UserError, match=r"is not of the form section\.key=value"):
        read(file, [change])


@pytest.mark.parametrize(
    ("change", "section", "key", "usual"),
    [
        ("method.tau=", "method", "tau", 50),
        ("method.tau = ", "method", "tau", 50),
        ("run.rounds=", "run", "rounds", 200),
        ("engine.address=", "engine", "address", ""),
    ],
)
def test_a_key_without_a_value_is_left_out(file: Path, change: str, section: str, key: str, usual: Any) -> None:
    assert getattr(getattr(read(file, [change]), section), key) == usual
    assert read(file, ["method.tau="]).method == PFLEGO(rho=0.5)


def test_a_name_without_a_value_is_the_usual_one(file: Path) -> None:
    file.write_text('[method]\nname = "fedavg"\neta = 0.5\n')
    assert read(file, ["method.name="]).method == PFLEGO()


def test_a_key_that_does_not_exist_cannot_be_left_out(file: Path) -> None:
    with pytest.raises(UserError, match=r"unknown key method\.taau"):
        read(file, ["method.taau="])


@pytest.mark.parametrize("section", ["sweep", "experiment"])
def test_what_is_no_part_of_a_run_cannot_be_changed_for_one(file: Path, section: str) -> None:
    with pytest.raises(UserError, match=rf"'{section}\.x=1': \[{section}\] is not part of a run"):
        read(file, [f"{section}.x=1"])


# -- from Python


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PFLEGO(rho=-1), "rho = -1: input should be greater than or equal to 0"),
        (lambda: PFLEGO(0), "tau = 0: input should be greater than or equal to 1"),
        (lambda: PFLEGO(taau=3), "taau = 3: unexpected keyword argument"),
        (lambda: MLP(hidden=[200, 0]), "hidden.1 = 0: input should be greater than or equal to 1"),
        (lambda: replace(PFLEGO(), tau=0), "tau = 0: input should be greater than or equal to 1"),
        (lambda: Fixed(), "r: field required"),
    ],
)
def test_a_bad_setting_is_told_as_in_a_recipe(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value) == message


def test_what_a_class_says_of_its_fields_together_is_told() -> None:
    @settings
    class Between:
        low: float
        high: float

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise UserError("low must not be above high")

    with pytest.raises(UserError, match=r"^low must not be above high$"):
        Between(2.0, 1.0)


@pytest.mark.parametrize("make", [lambda: Fixed(1, 2), lambda: Uniform(1, 2, low=1)])
def test_too_many_values_are_not_dropped(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="too many values, or one of them twice; it takes: "):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    method = PFLEGO(tau=np.int64(3), rho=np.float32(0.5), beta=np.float64(0.1))
    assert method == PFLEGO(tau=3, rho=0.5, beta=0.1)
    assert (type(method.tau), type(method.rho), type(method.beta)) == (int, float, float)
    run = run_settings(rounds=np.int64(2), participation="uniform", clients_range=[np.int32(2), np.int64(5)])
    assert run == run_settings(rounds=2, participation="uniform", clients_range=[2, 5])
    tree = {"method": {"name": "scafflix", "alpha": {"a": np.float64(0.5)}}}
    assert type(Recipe.parse(tree).method.alpha["a"]) is float


@pytest.mark.parametrize("tau", [np.float64(2.5), np.float64(2), np.True_, True, np.int64(0), np.array([3])])
def test_numbers_of_numpy_are_checked_as_others(tau: Any) -> None:
    with pytest.raises(UserError, match=r"^tau = "):
        PFLEGO(tau=tau)


# -- what a user may get wrong


def test_a_bad_value_in_a_table_is_named_with_its_keys() -> None:
    with pytest.raises(UserError, match=r"experiment\.published\.pflego\.0 = '98': "):
        Sheet.of({"experiment": {"methods": {"pflego": {}}, "published": {"pflego": ["98", 0.2]}}})


def test_an_unknown_section_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown section \[metod\] \(did you mean 'method'\?\); available: .*engine"):
        Recipe.parse({"metod": {}})


@pytest.mark.parametrize("value", [3, "x", [{"tau": 3}]])
def test_a_section_must_have_keys(value: Any) -> None:
    with pytest.raises(UserError, match=r"method = .* must be a section"):
        Recipe.parse({"method": value})


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [
        ("method", "taau", "tau"),
        ("run", "round", "rounds"),
        ("model", "hiden", "hidden"),
        ("eval", "adapt_step", "adapt_steps"),
        ("engine", "type", "dtype"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(section: str, key: str, nearest: str) -> None:
    with pytest.raises(UserError, match=rf"unknown key {section}\.{key} \(did you mean '{nearest}'\?\)"):
        Recipe.parse({section: {key: 1}})


def test_an_unknown_key_that_is_near_nothing_lists_what_there_is() -> None:
    with pytest.raises(UserError, match=r"unknown key method\.zzz; \[method\] takes: tau, beta, rho"):
        Recipe.parse({"method": {"zzz": 1}})
    with pytest.raises(UserError, match=r"unknown key aggregate\.zzz; \[aggregate\] takes no key except name"):
        Recipe.parse({"aggregate": {"zzz": 1}})


def test_an_option_of_another_method_is_unknown() -> None:
    with pytest.raises(UserError, match=r"unknown key method\.eta"):
        Recipe.parse({"method": {"name": "pflego", "eta": 0.1}})


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("method", "tau", "x"),
        ("method", "tau", 2.5),
        ("method", "tau", True),
        ("method", "tau", 0),
        ("method", "tau", -1),
        ("method", "tau", None),
        ("method", "beta", -0.1),
        ("method", "rho", float("nan")),
        ("method", "rho", float("inf")),
        ("method", "rho", 1e300),
        ("method", "rho", "0.1"),
        ("method", "server", "rmsprop"),
        ("model", "hidden", 200),
        ("model", "buffers", "mine"),
        ("partition", "new_users", 1.0),
        ("partition", "clients", 0),
        ("run", "rounds", -1),
        ("run", "seed", -1),
        ("run", "eval_every", 0),
        ("run", "eval_last", 0),
        ("run", "checkpoint_every", 0),
        ("run", "clients_per_round", 0),
        ("run", "participation", "always"),
        ("run", "probability", 0),
        ("run", "probability", 1.5),
        ("run", "clients_range", [1]),
        ("run", "clients_range", [1, 2, 3]),
        ("eval", "adapt_steps", -1),
        ("engine", "memory", 0.0),
        ("engine", "memory", float("inf")),
        ("engine", "memory", float("nan")),
        ("engine", "dtype", "float16"),
        ("engine", "device", "abacus"),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_named(section: str, key: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        Recipe.parse({section: {key: value}})
    assert str(caught.value).startswith(f"{section}.{key} = {value!r}: ")


@pytest.mark.parametrize(
    ("section", "key", "value"), [("model", "hidden", [200, 0]), ("run", "clients_range", [2, "many"])]
)
def test_a_bad_value_in_a_list_is_named_with_its_place(section: str, key: str, value: list[Any]) -> None:
    with pytest.raises(UserError) as caught:
        Recipe.parse({section: {key: value}})
    assert str(caught.value).startswith(f"{section}.{key}.1 = {value[1]!r}: ")


def test_a_negative_batch_size_is_refused() -> None:
    with pytest.raises(UserError, match=r"method\.batch_size = -1: "):
        Recipe.parse({"method": {"name": "fedavg", "batch_size": -1}})


@pytest.mark.parametrize(
    ("section", "kind", "name", "nearest"),
    [
        ("method", "method", "pflgo", "pflego"),
        ("data", "data", "digit", "digits"),
        ("model", "model", "mpl", "mlp"),
        ("partition", "partition", "class", "classes"),
        ("aggregate", "aggregate", "means", "mean"),
    ],
)
def test_an_unknown_name_lists_what_there_is(section: str, kind: str, name: str, nearest: str) -> None:
    with pytest.raises(UserError) as caught:
        Recipe.parse({section: {"name": name}})
    message = str(caught.value)
    assert message.startswith("unknown ")
    assert f"{name!r} (did you mean {nearest!r}?)" in message
    assert message.endswith("available: " + ", ".join(registry.names(kind)))


def test_an_unknown_engine_lists_what_there_is() -> None:
    with pytest.raises(UserError, match=r"unknown engine.kind 'lop' \(did you mean 'loop'\?\); available: .*loop"):
        Recipe.parse({"engine": {"kind": "lop"}})


def test_data_need_a_name() -> None:
    with pytest.raises(UserError, match=r"data\.name must be one of: .*digits, .*fashion-mnist"):
        Recipe.parse({"data": {}})


@pytest.mark.parametrize(
    "content", [b"[run\nrounds = 3", b"rounds: 3", b"\xff\xfe\x00", b"[run]\nrounds = 3\nrounds = 4"]
)
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"bad\.toml is not TOML"):
        read(path)


def test_a_missing_file_is_named_and_the_recipes_are_listed() -> None:
    with pytest.raises(
        UserError, match=r"no recipe file digts \(did you mean 'digits'\?\); available by name: .*digits"
    ):
        read("digts")


def test_a_folder_is_not_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the recipe"):
        read(tmp_path)


# -- participation

FORTY = Federation.from_arrays(
    {f"c{i}": (np.ones((n := 1 + i % 4, 2)), np.zeros(n), np.ones((1, 2)), np.zeros(1)) for i in range(42)},
    new=["c0", "c1"],
)


def test_all_clients_take_part_unless_told_otherwise() -> None:
    assert run_settings().cohorts(FORTY) == Fixed(40)
    assert run_settings(clients_per_round=7).cohorts(FORTY) == Fixed(7)


def test_participation_by_probability_and_by_range() -> None:
    assert run_settings(participation="independent", probability=0.25).cohorts(FORTY) == Independent(0.25)
    assert run_settings(participation="uniform", clients_range=[2, 5]).cohorts(FORTY) == Uniform(2, 5)


@pytest.mark.parametrize(("participation", "key"), [("independent", "probability"), ("uniform", "clients_range")])
def test_participation_names_the_key_that_it_needs(participation: str, key: str) -> None:
    with pytest.raises(UserError, match=rf'run\.participation = "{participation}" needs run\.{key}'):
        run_settings(participation=participation).cohorts(FORTY)


def test_probabilities_in_proportion_to_sizes() -> None:
    process = run_settings(participation="unequal", chances="sizes", clients_per_round=10).cohorts(FORTY)
    assert isinstance(process, Unequal)
    assert process.pi[:2].tolist() == [0, 0]  # new users
    sizes = np.array([1 + i % 4 for i in range(2, 42)])
    np.testing.assert_allclose(process.pi[2:], 10 * sizes / sizes.sum(), rtol=1e-12)


def test_probabilities_by_name() -> None:
    process = run_settings(participation="unequal", chances={"c5": 0.5, "c9": 1.0}, probability=0.1).cohorts(FORTY)
    assert isinstance(process, Unequal)
    assert [process.pi[i] for i in (0, 4, 5, 9)] == [0, 0.1, 0.5, 1.0]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"participation": "unequal"}, r'run\.participation = "unequal" needs run\.chances'),
        ({"participation": "unequal", "chances": "sizes"}, r"needs run\.clients_per_round"),
        ({"participation": "unequal", "chances": "sizes", "clients_per_round": 41}, "only 40 clients can be drawn"),
        (
            {"participation": "unequal", "chances": {"anna": 0.5}},
            "names 'anna', which is not one of the 40",
        ),
        ({"participation": "unequal", "chances": {"c0": 0.5}}, "run.chances names 'c0'"),
        (
            {"participation": "unequal", "chances": {"c2": 0.5}},
            "no probability for 'c3' and 38 other clients",
        ),
        ({"chances": "sizes"}, r'run\.chances is for run\.participation = "unequal", not for "fixed"'),
    ],
)
def test_what_is_wrong_with_unequal_probabilities_is_told(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        run_settings(**keys).cohorts(FORTY)


@pytest.mark.parametrize("value", [0.0, 1.5, float("nan")])
def test_a_probability_by_name_is_positive_and_at_most_one(value: float) -> None:
    with pytest.raises(UserError, match=r"chances\.c2"):
        run_settings(participation="unequal", chances={"c2": value})


def test_other_data_bring_their_usual_partition_and_model() -> None:
    recipe = read("digits", ["data.name=pubmed"])
    assert [type(part).__name__ for part in (recipe.partition, recipe.model)] == ["Louvain", "GIN"]
    named = {"data": {"name": "digits"}, "model": {"name": "mlp", "hidden": [9]}, "partition": {"clients": 7}}
    recipe = read(named, ["data.name=mnist", "partition.clients=8"])
    assert recipe.model.hidden == [9]
    assert recipe.partition.clients == 8
    assert read("digits", ["data.name=digits"]).model.hidden == [200]


def test_numbers_for_each_client_are_written_down() -> None:
    tree = Recipe.parse({"method": {"name": "scafflix", "alpha": {"a": 0.5, "b": 0.0}}}).as_dict()
    assert tree["method"]["alpha"] == {"a": 0.5, "b": 0.0}
    assert Recipe.parse(tree).as_dict() == tree


def test_what_a_sweep_searches_is_no_part_of_a_run():
    tables = {"data": {"name": "digits"}, "method": {"name": "pflego"}}
    searched = {**tables, "sweep": {"space": {"method": {"tau": [5, 20]}}}}
    assert Recipe.parse(searched).as_dict() == Recipe.parse(tables).as_dict()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[run]\nseed = " + "9" * 5000, "is not TOML: Exceeds the limit"),
        ("[run]\nseed = 0x" + "f" * 5000, r"run\.seed must be an integer of at most 64 bits"),
        ("[run]\nseed = 9223372036854775808", r"run\.seed must be an integer of at most 64 bits"),
        ("[method]\nalpha = " + "[" * 50_000, "its values are nested too deeply"),
        ("[method]\nalpha = " + "[" * 50 + "]" * 50, r"method\.alpha[.0]* is nested more than 10 levels deep"),
        ("method." + "a." * 40_000 + "a = 1", r"method[.a]* is nested more than 10 levels deep"),
        ('[data]\nname = "table"\npath = "a\\u0000b"', "contains a zero character"),
        ('[data]\nname = "table"\npath = "~nobody9/a.csv"', "the home folder of a user who does not exist"),
        ("# " + "a" * 1_000_000, "a recipe has at most 1,000,000 bytes"),
    ],
)
def test_a_file_that_no_one_can_mean_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "r.toml").write_text(content)
    with pytest.raises(UserError, match=reason) as caught:
        read(tmp_path / "r.toml")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("run.seed=" + "9" * 5000, r"--set run\.seed: the number has too many digits"),
        ("method.alpha=" + "[" * 50_000, r"--set method\.alpha: .* nested too deeply"),
        ("run.seed=0x" + "f" * 5000, r"run\.seed must be an integer of at most 64 bits"),
        ("eval.adapt_steps=" + "9" * 5000 + " epochs", r"eval\.adapt_steps"),
        ("data.name=mnist", r"partition = 3 must be a section"),
    ],
)
def test_a_change_that_no_one_can_mean_is_refused(change: str, reason: str) -> None:
    tree = {"data": {"name": "digits"}, "partition": 3} if "mnist" in change else {"data": {"name": "digits"}}
    with pytest.raises(UserError, match=reason):
        read(tree, [change])


def test_a_path_that_cannot_exist_is_named() -> None:
    with pytest.raises(UserError, match="contains a zero character"):
        read("a\0b")


def test_a_setting_from_python_may_not_be_huge() -> None:
    with pytest.raises(UserError, match="tau must be an integer of at most 64 bits"):
        PFLEGO(tau=10**5000)
