"""`coterie.load`: the models of a run from its folder alone, equal to those of the live run in every bit."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie
import reference as ref
from coterie import registry, training
from coterie.core.data import Graph
from coterie.core.method import Method
from coterie.core.tree import Tree
from coterie.data.examples import Assignment, Examples
from coterie.errors import UserError
from coterie.methods import FLIX, PFLEGO, FedAvg
from coterie.models.gin import GIN
from coterie.models.mlp import MLP
from coterie.models.model import Model, body_and_head
from coterie.run import Run
from coterie.settings import settings
from engines import METHODS, STEPS, Norm, model, numbers, sequences

rng = np.random.default_rng(5)
X, Y = rng.normal(size=(8, 4)), np.arange(8) % 2


def federation() -> coterie.Federation:
    """Return six clients, with heads of 3, 2, 3, 1, 3 and 2 outputs, and a new user."""
    return ref.federation((9, 3, 12, 4, 7, 2, 9), new=1)


def made(name: str) -> Method:
    """Return a method with few local steps."""
    method = registry.load("method", name)
    tau = getattr(method(), "tau", None)
    return method() if tau is None else method(tau=min(STEPS, tau))


def trained(out: Path, clients: coterie.Federation | None = None, **options) -> Run:
    """Return a run of two rounds that leaves some clients unvisited."""
    chosen = {"model": MLP(hidden=[6]), "method": PFLEGO(tau=3), "rounds": 2, "clients_per_round": 2}
    return coterie.train(clients or federation(), out=out, **{**chosen, **options})


def visited(run: Run) -> set[str]:
    return {client for record in run.history for client in record.cohort}


def assert_same_tree(one: Tree, other: Tree) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.dtype == other[name].dtype, name
        assert torch.equal(value, other[name]), name


def assert_same_module(one: nn.Module, other: nn.Module, x: Tensor | Graph) -> None:
    assert_same_tree(one.state_dict(), other.state_dict())
    assert torch.equal(one(x), other(x))
    assert one.classes == other.classes
    assert [type(label) for label in one.classes] == [type(label) for label in other.classes]
    assert not other.training


def assert_same_models(live: Run, loaded: Run, x: Tensor | Graph) -> None:
    assert loaded.ids == live.ids
    assert_same_tree(live.shared, loaded.shared)
    for client in live.ids:
        assert loaded.classes(client) == live.classes(client)
        assert_same_tree(live.personal(client), loaded.personal(client))
        assert_same_module(live.model(client), loaded.model(client), x)


def assert_same_run(live: Run, loaded: Run, x: Tensor | Graph) -> None:
    assert_same_models(live, loaded, x)
    assert loaded.history == live.history
    assert loaded.summary == live.summary
    assert loaded.clients() == live.clients()
    assert repr(loaded) == repr(live)


# -- the same in every bit


@pytest.mark.parametrize("kind", ["mlp", "norm average", "norm local"])
@pytest.mark.parametrize("name", METHODS)
def test_a_loaded_run_equals_the_live_one(tmp_path, name, kind):
    """For every method: clients that were visited, clients that were not, the new user, and one never seen before."""
    method = made(name)
    options = {"model": model(kind), "method": method, "clients_per_round": None if method.everyone else 2}
    live = trained(tmp_path / "run", **options)
    assert bool(set(live.ids[:6]) - visited(live)) != method.everyone
    loaded = coterie.load(tmp_path / "run", model=None if kind == "mlp" else Norm())
    assert_same_run(live, loaded, torch.tensor(X, dtype=torch.float32))
    for steps in (None, 3, "2 epochs"):
        pair = (run.personalize(X, Y, steps) for run in (live, loaded))
        assert_same_module(*pair, torch.tensor(X, dtype=torch.float32))


@pytest.mark.parametrize("method", [FedAvg(tau=3), PFLEGO(tau=3), made("ditto")])
def test_convolutions_have_the_memory_layout_of_the_live_run(tmp_path, method):
    """Products over another layout would round differently."""
    clients = {
        name: (rng.normal(size=(12, 3, 6, 6)), np.arange(12) % 3, rng.normal(size=(3, 3, 6, 6)), [0, 1, 2])
        for name in "abcd"
    }

    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(32, 3))

    live = trained(tmp_path / "run", coterie.Federation.from_arrays(clients), model=net(), head="4", method=method)
    loaded = coterie.load(tmp_path / "run", model=net())
    x, y, *_ = clients["a"]
    assert_same_run(live, loaded, torch.tensor(x, dtype=torch.float32))
    for name, value in live.shared.items():
        assert value.stride() == loaded.shared[name].stride(), name
    assert_same_module(*(run.personalize(x, y) for run in (live, loaded)), torch.tensor(x, dtype=torch.float32))


@pytest.mark.parametrize("names", [("zero", "one", "two", "drei ä", "four"), (10, -3, 2, 7, 1)])
@pytest.mark.parametrize("method", [PFLEGO(tau=2), FedAvg(tau=2)])
def test_labels_keep_their_type(tmp_path, names, method):
    clients = {f"client {i} ü": (rng.normal(size=(6, 4)), [names[i], names[(i + 1) % 5]] * 3) for i in range(5)}
    live = trained(tmp_path / "run", coterie.Federation.from_arrays(clients, new=["client 2 ü"]), method=method)
    loaded = coterie.load(tmp_path / "run")
    assert_same_run(live, loaded, torch.zeros(1, 4))
    assert loaded.ids == tuple(clients)
    assert loaded.classes("client 1 ü") == tuple(sorted(names[1:3]))
    assert {type(label) for label in loaded.classes("client 1 ü")} == {type(names[0])}
    y = [names[0], names[3]] * 4
    assert_same_module(*(run.personalize(X, y) for run in (live, loaded)), torch.zeros(1, 4))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_of_a_module_that_is_passed_again_do_not_matter(tmp_path, dtype):
    """Not even those that are constant, nor their precision."""

    def net(dtype: torch.dtype) -> nn.Module:
        layers = nn.Sequential(nn.Linear(4, 6, dtype=dtype), nn.Tanh(), nn.Linear(6, 5, dtype=dtype))
        layers[0].weight.requires_grad_(False)
        return layers

    live = trained(tmp_path / "run", model=net(torch.float64), head="2", dtype=dtype)
    loaded = coterie.load(tmp_path / "run", model=net(torch.float32))
    assert_same_run(live, loaded, torch.tensor(X, dtype=getattr(torch, dtype)))


def test_numbers_are_predicted_alike(tmp_path):
    live = trained(tmp_path / "run", numbers())
    loaded = coterie.load(tmp_path / "run")
    assert_same_run(live, loaded, torch.tensor(X, dtype=torch.float32))
    assert loaded.classes("client-0") == ()
    pair = (run.personalize(X, X[:, 0]) for run in (live, loaded))
    assert_same_module(*pair, torch.tensor(X, dtype=torch.float32))


@pytest.mark.parametrize("method", [PFLEGO(tau=2), FedAvg(tau=2)])
def test_tokens(tmp_path, method):
    clients = {name: (rng.integers(0, 5, (12, 6)), np.arange(12) % 2) for name in ("anna", "ben", "carl")}

    def net() -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(18, 2))

    clients = coterie.Federation.from_arrays(clients, tokens=True)
    live = trained(tmp_path / "run", clients, model=net(), head="2", method=method)
    loaded = coterie.load(tmp_path / "run", model=net())
    x = rng.integers(0, 5, (4, 6))
    assert_same_run(live, loaded, torch.tensor(x))
    assert_same_module(*(run.personalize(x, [0, 1, 0, 1]) for run in (live, loaded)), torch.tensor(x))
    with pytest.raises(UserError, match=r"tokens from 0 to 7.*of the federation are from 0 to 4"):
        loaded.personalize(np.arange(12).reshape(2, 6) % 8, [0, 1])


def test_an_answer_at_each_position(tmp_path):
    live = trained(tmp_path / "run", sequences(), model=registry.load("model", "lstm")(hidden=4), method=FedAvg(tau=2))
    assert_same_run(live, coterie.load(tmp_path / "run"), torch.tensor([[0, 1, 2, 3, 4]]))


@pytest.mark.parametrize("method", [PFLEGO(tau=2), FedAvg(tau=2)])
def test_graphs(tmp_path, method):
    ring = np.array([[i, (i + 1) % 18] for i in range(18)]).T
    edges = np.concatenate([ring, ring[::-1]], axis=1)
    x, y = rng.normal(size=(18, 4)).astype(np.float32), np.arange(18) % 3
    examples = Examples(x[:12], y[:12], x[12:], y[12:], ("a", "b", "c"), edges=edges)
    rows, tested = np.split(np.arange(12), 3), np.split(np.arange(6), 3)
    assignment = Assignment(rows, tested, [np.arange(3)] * 3, np.array([False, False, True]))
    clients = coterie.Federation.assemble(examples, assignment)
    live = trained(tmp_path / "run", clients, model=GIN(hidden=5), method=method)
    loaded = coterie.load(tmp_path / "run")
    assert_same_run(live, loaded, Graph(torch.from_numpy(x), torch.from_numpy(edges)))
    with pytest.raises(UserError, match="edges"):
        loaded.personalize(x[:2], y[:2])


def test_shared_heads_over_local_labels(tmp_path):
    live = trained(tmp_path / "run", model=MLP(hidden=[6], labels="local"), method=FedAvg(tau=2))
    loaded = coterie.load(tmp_path / "run")
    assert_same_run(live, loaded, torch.tensor(X, dtype=torch.float32))
    assert None in loaded.model("client-1").classes


def test_no_rounds(tmp_path):
    """The initial models; those of clients that prepare before their first round are prepared."""
    for name, method in (("plain", PFLEGO()), ("prepared", FLIX(optimum_epochs=2))):
        live = trained(tmp_path / name, rounds=0, method=method)
        loaded = coterie.load(tmp_path / name)
        assert loaded.history == []
        assert_same_run(live, loaded, torch.tensor(X, dtype=torch.float32))


# -- a run that has not finished


class Killed(BaseException):
    """Like SIGKILL, nothing catches it."""


def killed(out: Path, **options) -> Run:
    """Return the live run of two rounds, and leave a folder of its first two rounds of four in `out`."""

    def copy(record):
        if record.round == 2:
            shutil.copytree(out.parent / "whole", out)
            raise Killed

    with pytest.raises(Killed):
        trained(out.parent / "whole", rounds=4, on_round=copy, **options)
    return trained(out.parent / "two", **options)


@pytest.mark.parametrize("method", [PFLEGO(tau=2), FedAvg(tau=2), made("scaffold"), FLIX(optimum_epochs=2)])
def test_a_killed_run_gives_its_last_checkpoint(tmp_path, method):
    two = killed(tmp_path / "run", method=method, checkpoint_every=1, eval_every=1)
    loaded = coterie.load(tmp_path / "run")
    assert_same_models(two, loaded, torch.tensor(X, dtype=torch.float32))
    assert [record.cohort for record in loaded.history] == [record.cohort for record in two.history]
    assert loaded.clients() == []
    assert repr(loaded).endswith("2 rounds, 6 clients and 1 new user, not finished>")
    with pytest.raises(UserError, match="has not finished"):
        _ = loaded.summary
    pair = (run.personalize(X, Y) for run in (two, loaded))
    assert_same_module(*pair, torch.tensor(X, dtype=torch.float32))


def test_rounds_after_the_last_checkpoint_are_forgotten(tmp_path):
    """Also a line that was half written."""
    killed(tmp_path / "run", checkpoint_every=1)
    whole = coterie.load(tmp_path / "run")
    with (tmp_path / "run" / "rounds.jsonl").open("a") as log:
        log.write('{"round": 3, "coh')
    assert coterie.load(tmp_path / "run").history == whole.history
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "round-000002")
    assert coterie.load(tmp_path / "run").history == whole.history[:1]


def test_a_run_killed_before_its_first_checkpoint_has_no_models(tmp_path):
    killed(tmp_path / "run", checkpoint_every=100)
    with pytest.raises(UserError, match="has no checkpoint: the run was stopped before its first one"):
        coterie.load(tmp_path / "run")


def test_a_folder_that_has_lost_its_checkpoint_has_no_models(tmp_path):
    trained(tmp_path / "run", rounds=2)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    with pytest.raises(
        UserError, match=r"the folder checkpoint/ is missing. Resume the run, which then begins at round 1"
    ):
        coterie.load(tmp_path / "run")
    assert len(trained(tmp_path / "run", rounds=2, resume=True).history) == 2
    coterie.load(tmp_path / "run")


def test_a_lost_checkpoint_that_cannot_be_made_again_is_said_alike_when_loading_and_resuming(tmp_path):
    trained(tmp_path / "run", rounds=2, checkpoint_every=1)
    shutil.rmtree(tmp_path / "run" / "checkpoint")
    words = "checkpoint is gone, without which the run has no models and cannot be resumed; copy it"
    with pytest.raises(UserError, match=words):
        coterie.load(tmp_path / "run")
    with pytest.raises(UserError, match=words):
        trained(tmp_path / "run", rounds=2, checkpoint_every=1, resume=True)


def test_a_missing_table_of_clients_is_written_again_by_resuming(tmp_path):
    trained(tmp_path / "run")
    table = tmp_path / "run" / "clients.csv"
    before = table.read_bytes()
    table.unlink()
    with pytest.raises(UserError, match=r"clients.csv is missing or damaged. Resume the run to write it again"):
        coterie.load(tmp_path / "run")
    trained(tmp_path / "run", resume=True)
    coterie.load(tmp_path / "run")
    assert table.read_bytes() == before


@pytest.mark.parametrize(
    ("place", "is_folder"),
    [("checkpoint/round-000009", False), ("checkpoint/personal/mine", True), (".summary.json.partial", True)],
)
def test_what_a_run_cannot_have_written_is_named(tmp_path, place, is_folder):
    trained(tmp_path / "run")
    strange = tmp_path / "run" / place
    strange.parent.mkdir(exist_ok=True)
    strange.mkdir() if is_folder else strange.touch()
    with pytest.raises(UserError, match=f"{place} is a {'folder' if is_folder else 'file'}, where a run has only"):
        trained(tmp_path / "run", resume=True)
    strange.rmdir() if is_folder else strange.unlink()
    trained(tmp_path / "run", resume=True)


def test_a_folder_with_another_kind_of_digit_is_no_checkpoint(tmp_path):
    trained(tmp_path / "run")
    (tmp_path / "run" / "checkpoint" / "round-²").mkdir()
    coterie.load(tmp_path / "run")
    trained(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "checkpoint" / "round-²").exists()


def test_a_run_without_test_examples_speaks_of_no_scores(tmp_path):
    x = np.ones((4, 3))
    clients = {name: (x, [0, 0, 0, 0], x[:0], []) for name in "ab"}
    run = coterie.train(coterie.Federation.from_arrays(clients), rounds=1)
    assert "only one class" not in repr(run)


def test_another_method_than_that_of_the_run_is_refused(tmp_path):
    trained(tmp_path / "run", method="apfl", rounds=1)
    for method in (coterie.methods.FedAvg(), coterie.methods.APFL(eta=0.3)):
        with pytest.raises(UserError, match=r"the run was trained with apfl\(tau=10, .*\), not with"):
            coterie.load(tmp_path / "run", method=method)
    assert coterie.load(tmp_path / "run", method=coterie.methods.APFL()).ids


def test_a_name_is_not_a_model_of_your_own(tmp_path):
    trained(tmp_path / "run", rounds=1)
    with pytest.raises(UserError, match=r"model must be your nn\.Module, not 'mlp'; omit it"):
        coterie.load(tmp_path / "run", model="mlp")


def test_a_killed_process(tmp_path):
    program = """
import coterie, reference as ref
coterie.train(ref.federation((9, 3, 12, 4, 7, 2, 9), new=1), rounds=100000, checkpoint_every=1, out="run")
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=env)
    deadline = time.monotonic() + 120
    try:
        # Only the last two checkpoints are kept, so a certain one may be gone before it is seen.
        while max((path.name for path in tmp_path.glob("run/checkpoint/round-*")), default="") < "round-000003":
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    loaded = coterie.load(tmp_path / "run")
    number = len(loaded.history)
    assert number >= 3
    live = coterie.train(federation(), rounds=number)
    assert_same_models(live, loaded, torch.tensor(X, dtype=torch.float32))


def test_a_client_that_has_not_prepared_needs_its_data(tmp_path):
    live = trained(tmp_path / "run", method=FLIX(optimum_epochs=2), eval_clients=1)
    loaded = coterie.load(tmp_path / "run")
    known = visited(live) | {row["client"] for row in live.clients()}
    unknown = set(live.ids) - known
    assert unknown
    for client in known:
        assert_same_tree(live.personal(client), loaded.personal(client))
    for client in unknown:
        with pytest.raises(UserError, match=f"client '{client}' was neither visited nor evaluated"):
            loaded.model(client)


def test_a_run_that_goes_on_is_not_finished_any_more(tmp_path):
    """The figures of the shorter run do not belong to it."""
    trained(tmp_path / "run", checkpoint_every=1)

    def stop(record):
        raise Killed

    with pytest.raises(Killed):
        trained(tmp_path / "run", rounds=4, resume=True, on_round=stop, checkpoint_every=1)
    loaded = coterie.load(tmp_path / "run")
    assert len(loaded.history) == 3
    assert loaded.clients() == []
    with pytest.raises(UserError, match="has not finished"):
        _ = loaded.summary


def test_a_run_killed_before_it_wrote_its_announcement_is_resumed(tmp_path, monkeypatch):
    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(training, "write_artifact", kill)
        with pytest.raises(Killed):
            trained(tmp_path / "run")
    resumed = trained(tmp_path / "run", resume=True)
    whole = trained(tmp_path / "whole")
    assert_same_models(whole, resumed, torch.tensor(X, dtype=torch.float32))
    assert_same_run(resumed, coterie.load(tmp_path / "run"), torch.tensor(X, dtype=torch.float32))


# -- without anything but the folder


def test_the_folder_can_be_moved_and_needs_neither_network_nor_data(tmp_path):
    """A new process loads the folder from another place, and reads nothing else."""
    live = trained(tmp_path / "first" / "run")
    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "run").rename(tmp_path / "second" / "moved")
    shutil.rmtree(tmp_path / "first")
    program = """
import socket, sys
def refuse(*_, **__):
    raise AssertionError("nothing may be asked of the network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import coterie, torch
run = coterie.load("moved")
torch.save({client: run.model(client).state_dict() for client in run.ids}, "models.pt")
data = [name for name in sys.modules if name.startswith(("coterie.data.sets.", "coterie.data.own."))]
assert not data, data
"""
    env = {**os.environ, "COTERIE_DATA": str(tmp_path / "nothing"), "HOME": str(tmp_path / "nobody")}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "second", env=env, check=True)
    for client, state in torch.load(tmp_path / "second" / "models.pt").items():
        assert_same_tree(live.model(client).state_dict(), state)


def test_models_can_be_read_when_the_folder_is_gone(tmp_path):
    live = trained(tmp_path / "run")
    loaded = coterie.load(str(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run")
    assert_same_run(live, loaded, torch.tensor(X, dtype=torch.float32))


def test_a_loaded_run_has_no_data(tmp_path):
    live = trained(tmp_path / "run")
    assert live.federation.ids == live.ids
    with pytest.raises(UserError, match="has no data"):
        _ = coterie.load(tmp_path / "run").federation


def test_what_is_handed_out_is_a_copy(tmp_path):
    live = trained(tmp_path / "run")
    loaded = coterie.load(tmp_path / "run")
    for value in [*loaded.shared.values(), *loaded.personal("client-0").values()]:
        value.zero_()
    loaded.clients()[0].clear()
    assert_same_run(live, loaded, torch.tensor(X, dtype=torch.float32))


# -- what cannot be loaded


@pytest.mark.parametrize("file", ["announcement.json", "initial.safetensors", "clients.safetensors"])
def test_a_folder_of_an_earlier_version_says_what_it_lacks(tmp_path, file):
    trained(tmp_path / "run")
    (tmp_path / "run" / file).unlink()
    for use in (lambda: coterie.load(tmp_path / "run"), lambda: trained(tmp_path / "run", resume=True)):
        with pytest.raises(UserError, match=f"run lacks {file}, .*earlier versions of Coterie.*Train again"):
            use()
    assert (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / file).exists()


@pytest.mark.parametrize("file", ["announcement.json", "initial.safetensors", "clients.safetensors"])
def test_a_damaged_file_is_said(tmp_path, file):
    trained(tmp_path / "run")
    path = tmp_path / "run" / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=f"{file} is damaged: its sha256"):
        coterie.load(tmp_path / "run")


def test_a_folder_without_a_run(tmp_path):
    with pytest.raises(UserError, match="not the folder of a run"):
        coterie.load(tmp_path)
    with pytest.raises(UserError, match="not the folder of a run"):
        coterie.load(tmp_path / "nothing")


def test_a_module_of_your_own_must_be_passed_again(tmp_path):
    live = trained(tmp_path / "run", model=Norm(), head="fc")
    with pytest.raises(UserError, match=r"with an nn\.Module of your own: pass it as coterie\.load\(folder, model=.*"):
        coterie.load(tmp_path / "run")
    other = Norm()
    other.norm = nn.Identity()
    with pytest.raises(UserError, match="not the model of the run"):
        coterie.load(tmp_path / "run", model=other)
    assert_same_run(live, coterie.load(tmp_path / "run", model=Norm()), torch.tensor(X, dtype=torch.float32))


@settings
class Wide(Model):
    """A model of one's own, by its settings."""

    width: int = 3

    @property
    def head(self) -> str:
        return "last"

    def build(self, shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        net = nn.Sequential(nn.Linear(shape[0], self.width), nn.Tanh())
        net.add_module("last", nn.Linear(self.width, num_outputs))
        return net


def test_settings_of_a_model_of_your_own(tmp_path):
    live = trained(tmp_path / "run", model=Wide(width=7))
    with pytest.raises(UserError, match=r"an nn\.Module of your own"):
        coterie.load(tmp_path / "run")
    assert_same_run(live, coterie.load(tmp_path / "run", model=Wide(width=7)), torch.tensor(X, dtype=torch.float32))


def test_a_module_for_a_model_of_coterie(tmp_path):
    """It is not needed, but it does no harm if it is the same network."""
    live = trained(tmp_path / "run")
    net = body_and_head([nn.Flatten(), nn.Linear(4, 6), nn.ReLU()], 6, 3)
    assert_same_run(live, coterie.load(tmp_path / "run", model=net), torch.tensor(X, dtype=torch.float32))
    other = body_and_head([nn.Flatten(), nn.Linear(4, 7), nn.ReLU()], 7, 3)
    with pytest.raises(UserError, match="not the model of the run"):
        coterie.load(tmp_path / "run", model=other)


@settings
class Slower(FedAvg):
    """A method of one's own, which is not registered."""

    share: float = 0.5

    def adapt(self, task, shared, personal, data, steps):
        after = super().adapt(task, shared, personal, data, steps)
        return {name: shared[name] + self.share * (value - shared[name]) for name, value in after.items()}


def test_a_method_of_your_own_must_be_passed_again(tmp_path):
    method = Slower(tau=3, share=0.25)
    live = trained(tmp_path / "run", method=method)
    with pytest.raises(UserError, match=r"the method Slower of your own: pass it as .*\(folder, method=...\)"):
        coterie.load(tmp_path / "run")
    loaded = coterie.load(tmp_path / "run", method=method)
    assert_same_run(live, loaded, torch.tensor(X, dtype=torch.float32))
    pair = (run.personalize(X, Y) for run in (live, loaded))
    assert_same_module(*pair, torch.tensor(X, dtype=torch.float32))


def test_a_wrong_name_is_answered_with_the_nearest(tmp_path):
    trained(tmp_path / "run")
    loaded = coterie.load(tmp_path / "run")
    for use in (loaded.model, loaded.personal, loaded.classes):
        with pytest.raises(UserError, match=r"no client 'cleint-3' \(did you mean 'client-3'\?\)"):
            use("cleint-3")
