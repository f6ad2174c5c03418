"""The Python interface: the models of all clients, a client never seen before, a run folder, and resuming."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import coterie
from coterie.clients.announcement import Announcement
from coterie.measure.protocols import Existing, New, Statistics
from coterie.methods import FLIX, PFLEGO, FedAvg
from coterie.models.mlp import MLP
from coterie.recipe import read


def three_friends():
    """Return digits for four people, who each have a few classes and give them names."""
    x, y = load_digits(return_X_y=True)
    known = {"anna": (0, 1), "ben": (2, 3, 4), "carl": (1, 5), "dora": (6, 7, 8)}
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    clients = {}
    for name, digits in known.items():
        rows = np.flatnonzero(np.isin(y, digits))[:120]
        clients[name] = (x[rows[:80]] / 16, names[y[rows[:80]]], x[rows[80:]] / 16, names[y[rows[80:]]])
    return clients


@pytest.fixture(scope="module")
def federation():
    return coterie.Federation.from_arrays(three_friends())


@pytest.fixture(scope="module")
def run(federation):
    method = PFLEGO(tau=20, beta=0.1, rho=0.01)
    return coterie.train(federation, model="mlp", method=method, rounds=15, clients_per_round=2, eval_every=5)


def test_a_clients_model_is_a_plain_module_that_scores_as_reported(run):
    accuracies = []
    for name, (_, _, x, y) in three_friends().items():
        model = run.model(name)
        assert isinstance(model, nn.Module)
        assert model.classes == tuple(sorted(set(y)))
        assert not model.training
        predicted = np.array(model.classes)[model(torch.tensor(x, dtype=torch.float32)).argmax(1)]
        accuracies.append(np.mean(predicted == y))
    assert np.mean(accuracies) == pytest.approx(run.summary.existing.as_is.mean)
    assert np.mean(accuracies) > 0.9


def test_the_parts_of_a_model(run):
    assert set(run.shared) == {"body.1.weight", "body.1.bias"}
    assert set(run.personal("ben")) == {"head.weight", "head.bias"}
    assert run.personal("ben")["head.bias"].shape == (3,)
    state = run.model("ben").state_dict()
    assert torch.equal(state["body.1.weight"], run.shared["body.1.weight"])
    assert torch.equal(state["head.weight"], run.personal("ben")["head.weight"])


def test_a_client_never_seen_before(run):
    x, y = load_digits(return_X_y=True)
    rows = np.flatnonzero(np.isin(y, (4, 9)))
    x, y = x[rows] / 16, np.array(["four", "nine"])[(y[rows] == 9).astype(int)]
    model = run.personalize(x[:40], y[:40])
    assert model.classes == ("four", "nine")
    predicted = np.array(model.classes)[model(torch.tensor(x[40:], dtype=torch.float32)).argmax(1)]
    assert np.mean(predicted == y[40:]) > 0.9
    assert torch.equal(model.state_dict()["body.1.weight"], run.shared["body.1.weight"])


def test_personalize_refuses_what_does_not_fit(run, federation):
    with pytest.raises(coterie.UserError, match="shape"):
        run.personalize(np.zeros((3, 5)), ["one", "one", "two"])
    with pytest.raises(coterie.UserError, match="no training example"):
        run.personalize(np.zeros((0, 64)), [])
    shared = coterie.train(federation, method=FedAvg(tau=2), rounds=1)
    with pytest.raises(coterie.UserError, match="nine"):
        shared.personalize(np.zeros((1, 64)), ["nine"])


def test_tokens_of_a_new_client_must_be_known():
    rng = np.random.default_rng(0)
    clients = {name: (rng.integers(0, 5, (12, 6)), np.arange(12) % 2) for name in ("anna", "ben")}
    net = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(18, 2))
    run = coterie.train(coterie.Federation.from_arrays(clients, tokens=True), model=net, head="2", rounds=1)
    assert run.personalize(np.full((2, 6), 6), [0, 1]).classes == (0, 1)  # unseen, but the embedding has it
    with pytest.raises(coterie.UserError, match=r"tokens from 3 to 7.*of the federation are from 0 to 4"):
        run.personalize(np.array([[3] * 6, [3, 4, 5, 6, 6, 7]]), [0, 1])


def test_a_shared_head_personalizes_over_all_classes(federation):
    run = coterie.train(federation, method=FedAvg(tau=5, eta=0.1), rounds=3)
    x, y, _, _ = three_friends()["carl"]
    model = run.personalize(x, y)
    assert model.classes == federation.labels
    predicted = np.array(model.classes)[model(torch.tensor(x, dtype=torch.float32)).argmax(1)]
    assert np.mean(predicted == y) > 0.9


def test_an_unknown_client(run):
    with pytest.raises(coterie.UserError, match="'anna'"):
        run.model("ana")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, 16), nn.Tanh())
        self.classifier = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 10))

    def forward(self, x):
        return self.classifier(self.features(x))


def test_a_module_of_your_own_with_a_head_of_two_layers(federation):
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    run = coterie.train(federation, model=net, head="classifier", method=PFLEGO(tau=5, beta=0.1), rounds=2)
    assert set(run.shared) == {"features.0.weight", "features.0.bias"}
    assert run.personal("dora")["classifier.2.bias"].shape == (3,)
    assert type(run.model("dora")) is Net
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())  # yours is left alone
    untouched = coterie.train(federation, model=net, head="classifier", rounds=0)
    assert torch.equal(untouched.shared["features.0.weight"], before["features.0.weight"])  # and is the initial model


def test_a_head_that_is_not_there(federation):
    with pytest.raises(coterie.UserError, match=r"'classifer'.*classifier"):
        coterie.train(federation, model=Net(), head="classifer", rounds=1)


def test_settings_are_checked_as_in_a_recipe(federation):
    for settings, words in (
        ({"rounds": -1}, "run.rounds"),
        ({"clients_per_round": 5}, "run.clients_per_round = 5, but only 4"),
        ({"model": "mpl"}, "'mlp'"),
        ({"engine": "lop"}, "'loop'"),
        ({"dtype": "float16"}, "engine.dtype"),
        ({"resume": True}, "out="),
    ):
        with pytest.raises(coterie.UserError, match=words):
            coterie.train(federation, **settings)
    with pytest.raises(ValueError, match="tau"):
        PFLEGO(tau=0)
    with pytest.raises(AttributeError):
        PFLEGO().tau = 3


@pytest.mark.parametrize("data", [{"a": ([[1.0]], [0])}, None, "digits"])
def test_what_is_not_a_federation_is_refused(data):
    with pytest.raises(coterie.UserError, match=r"train\(\) needs a federation, not .*Federation\.from_arrays"):
        coterie.train(data, rounds=1)


def test_an_unknown_argument_is_answered_with_the_nearest(federation):
    for argument, words in (("round", "no argument 'round'.*'rounds'"), ("on_rounds", "'on_round'")):
        with pytest.raises(TypeError, match=words):
            coterie.train(federation, **{argument: 3})


def test_further_settings_of_a_recipe(federation, tmp_path):
    settings = {
        "engine": {"kind": "loop", "memory": 0.5},
        "aggregate": {"name": "mean"},
        "run": {"rounds": 1},
        "model": {"hidden": [7]},
        "method": {"tau": 3},
    }
    run = coterie.train(federation, method="fedavg", engine="vmap", rounds=4, settings=settings, out=tmp_path / "run")
    assert (run.summary.engine, run.summary.rounds) == ("loop", 1)
    assert run.shared["body.1.weight"].shape == (7, 64)
    recipe = read(tmp_path / "run" / "recipe.toml")
    assert recipe.engine.memory == 0.5
    assert recipe.method == FedAvg(tau=3)


def test_further_settings_go_with_a_model_and_a_method_of_your_own(federation, tmp_path):
    settings = {"model": {"head_init": "uniform", "labels": "global"}, "method": {"tau": 3}}
    options = {"method": PFLEGO(tau=2, beta=0.1), "rounds": 0, "settings": settings}
    for model in (Net(), MLP(hidden=[7])):
        folder = tmp_path / type(model).__name__
        run = coterie.train(federation, model=model, head="classifier", out=folder, **options)
        written = json.loads((folder / "announcement.json").read_text())
        announcement = Announcement.from_json(written, None if isinstance(model, MLP) else model)
        assert announcement.method == PFLEGO(tau=3, beta=0.1)
        head = run.personal("anna")["head.weight" if isinstance(model, MLP) else "classifier.2.weight"]
        assert head.shape[0] == 9
        assert 0 <= head.min() < head.max() < 1
        assert (announcement.model.head_init, announcement.model.labels) == ("uniform", "global")
    assert announcement.model == MLP(hidden=[7], head_init="uniform", labels="global")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": {"worker": 2}}, r"unknown key engine\.worker \(did you mean 'workers'\?\)"),
        ({"engine.workers": 2}, r"keys by section, .*not 'engine\.workers': 2.*: model, method, aggregate, run"),
        ({"engine": 2}, "keys by section"),
        ({"data": {"name": "digits"}}, "keys by section, .*not 'data'"),
        ({"model": {"buffers": "avrage"}}, r"model\.buffers = 'avrage'"),
        ({"model": {"hidden": [3]}}, r"unknown key model\.hidden"),
        ({"model": {"init": "glorot-normal"}}, "would overwrite the weights"),
        ({"method": {"tau": 0}}, r"method\.tau = 0"),
    ],
)
def test_further_settings_are_checked(federation, settings, words):
    with pytest.raises(coterie.UserError, match=words):
        coterie.train(federation, model=Net(), head="classifier", method=PFLEGO(), rounds=1, settings=settings)


def test_every_round_is_told(federation):
    told = []
    run = coterie.train(federation, method=PFLEGO(tau=2), rounds=3, eval_every=2, on_round=told.append)
    assert told == run.history
    assert [record.round for record in told] == [1, 2, 3]


def test_a_run_is_shown_by_its_figures(federation):
    run = coterie.train(federation, method=PFLEGO(tau=2), rounds=0)
    existing = Existing(as_is=Statistics(mean=0.25), adapted=Statistics(mean=0.98765))
    run._summary = replace(run.summary, existing=existing)
    assert repr(run) == "<Run of pflego: 0 rounds, 4 clients, accuracy 25.00% as is, 98.77% adapted>"
    run._summary = replace(run.summary, new=New(after=Statistics(mean=0.5)))
    assert repr(run).endswith("adapted, 50.00% for new users after adaptation>")


def test_volumes_are_trained():
    """Convolutions over three axes do not have the channels-last layout of images."""
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(8, 1, 4, 4, 4)), np.arange(8) % 2) for name in ("anna", "ben")}
    net = nn.Sequential(nn.Conv3d(1, 2, 3), nn.Flatten(), nn.Linear(16, 2))
    for method in ("pflego", "fedavg"):
        run = coterie.train(coterie.Federation.from_arrays(clients), model=net, head="2", method=method, rounds=1)
        assert run.shared["0.weight"].shape == (2, 1, 3, 3, 3)


def test_images_lie_channels_last():
    clients = {"anna": (np.ones((4, 2, 4, 4)), np.arange(4) % 2)}
    net = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    run = coterie.train(coterie.Federation.from_arrays(clients), model=net, head="2", rounds=0)
    assert run.shared["0.weight"].is_contiguous(memory_format=torch.channels_last)


def test_nothing_is_loaded_before_it_is_asked_for():
    """Without PyTorch the command line starts ten times as fast. How threads wait must be set before it is loaded."""
    program = """
import json, os, sys
import coterie, coterie.cli
told = {"early": "torch" in sys.modules, "waits": os.environ["GOMP_SPINCOUNT"], "dir": dir(coterie)}
try:
    coterie.trian
except AttributeError as error:
    told["missing"] = str(error)
from coterie import Federation, Recipe, Run, UserError, methods, train
from coterie.training import train as same
told |= {"late": "torch" in sys.modules, "same": train is same is coterie.train}
told["method"] = coterie.methods.PFLEGO.__name__
print(json.dumps(told))
"""
    env = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}  # which this process has set
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True)
    told = json.loads(done.stdout)
    assert set(coterie.__all__) <= set(told.pop("dir"))
    assert told == {
        "early": False,
        "waits": "20000",
        "missing": "module 'coterie' has no attribute 'trian'",
        "late": True,
        "same": True,
        "method": "PFLEGO",
    }


def test_dtype(federation):
    run = coterie.train(federation, method=PFLEGO(tau=2), rounds=1, dtype="float64")
    tensors = [*run.shared.values(), *run.personal("anna").values()]
    assert {value.dtype for value in tensors} == {torch.float64}
    assert next(run.model("anna").parameters()).dtype == torch.float64


def test_out_and_resume_from_python(federation, tmp_path):
    settings = {"method": PFLEGO(tau=2), "clients_per_round": 2, "checkpoint_every": 2, "eval_every": 3}
    whole = coterie.train(federation, rounds=6, out=tmp_path / "whole", **settings)
    resumed = coterie.train(federation, rounds=6, out=tmp_path / "whole", resume=True, **settings)
    assert resumed.summary == whole.summary
    with pytest.raises(coterie.UserError, match=r"run\.rounds"):
        coterie.train(federation, rounds=5, out=tmp_path / "whole", resume=True, **settings)
    with pytest.raises(coterie.UserError, match="already holds a run"):
        coterie.train(federation, rounds=6, out=tmp_path / "whole", **settings)
    others = three_friends()
    others["anna"] = (others["anna"][0][1:], others["anna"][1][1:], *others["anna"][2:])
    other = coterie.Federation.from_arrays(others)
    for rounds in (6, 7):
        with pytest.raises(coterie.UserError, match="federation differs"):
            coterie.train(other, rounds=rounds, out=tmp_path / "whole", resume=True, **settings)
        assert (
            coterie.train(federation, rounds=6, out=tmp_path / "whole", resume=True, **settings).summary
            == whole.summary
        )
    longer = coterie.train(federation, rounds=7, out=tmp_path / "whole", resume=True, **settings)
    assert [record.round for record in longer.history] == [1, 2, 3, 4, 5, 6, 7]


def test_logistic_regression_has_no_body_to_share(federation):
    run = coterie.train(federation, model="logreg", method=PFLEGO(tau=20, beta=0.5), rounds=4, clients_per_round=4)
    assert run.shared == {}
    assert run.summary.cost.bytes_down == 0
    assert run.summary.existing.as_is.mean > 0.9


def test_what_is_handed_out_is_a_copy(run):
    run.personal("anna")["head.weight"].zero_()
    run.shared["body.1.weight"].zero_()
    assert run.personal("anna")["head.weight"].abs().sum() > 0
    assert run.shared["body.1.weight"].abs().sum() > 0


def test_a_shared_head_over_local_labels_names_only_the_outputs_a_client_uses(federation):
    run = coterie.train(federation, model=MLP(labels="local"), method=FedAvg(tau=2), rounds=1)
    assert run.model("anna").classes == ("one", "zero", None)
    assert run.model("anna")(torch.zeros(1, 64)).shape == (1, 3)
    with pytest.raises(coterie.UserError, match="4 classes do not fit the shared head of 3 outputs"):
        run.personalize(np.zeros((4, 64)), ["one", "two", "three", "four"])


def test_heads_drawn_uniformly(federation):
    run = coterie.train(federation, model=MLP(head_init="uniform"), rounds=0)
    heads = [run.personal(name)["head.weight"] for name in ("anna", "carl")]
    for head in heads:
        assert 0 <= head.min() < 0.1
        assert 0.9 < head.max() < 1
        assert head.mean() == pytest.approx(0.5, abs=0.05)
    assert not torch.equal(*heads)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"method": FedAvg}, "method must be a name or a method"),
        ({"model": MLP}, "model must be a name"),
        (
            {"model": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), "head": "1"},
            "inputs of shape 64 and type torch.float32",
        ),
        (
            {"model": nn.Sequential(nn.Linear(64, 2)), "head": "", "method": "fedavg"},
            "2 outputs, but the labels need 9",
        ),
    ],
)
def test_what_cannot_be_trained_is_said(federation, arguments, words):
    with pytest.raises(coterie.UserError, match=words):
        coterie.train(federation, rounds=1, **arguments)


def test_another_initial_model_cannot_be_resumed(federation, tmp_path):
    settings = {"head": "classifier", "method": PFLEGO(tau=2), "rounds": 2, "out": tmp_path / "mine"}
    coterie.train(federation, model=Net(), **settings)
    with pytest.raises(coterie.UserError, match="initial model differs"):
        coterie.train(federation, model=Net(), resume=True, **settings)


def test_everyone_new_leaves_nobody_to_train():
    clients = three_friends()
    with pytest.raises(coterie.UserError, match="every client is a new user"):
        coterie.train(coterie.Federation.from_arrays(clients, new=list(clients)))


def test_the_protocol_says_what_new_users_have_before_adaptation(federation, run):
    settled = coterie.train(federation, model="mlp", method=FLIX(optimum_epochs=1), rounds=0).summary.protocol
    assert settled.endswith("; the method prepares them on their training split first.")
    assert "prepares" not in run.summary.protocol
