"""Models at sites: after a run, and for a site that took no part."""

from pathlib import Path

import pytest
import torch

import coterie
import reference as ref
from coterie.clients.wire import decode
from coterie.errors import UserError
from coterie.sites import sent
from coterie.sites.server import welcome
from coterie.storage.folder import SERVER
from coterie.training import Training
from sites.direct import Direct, ready, simulated
from sites.test_equality import recipe


@pytest.mark.parametrize("method", ["pflego", "fedavg", "scafflix", "fedem"])
def test_a_site_has_the_model_that_the_simulation_has(method: str, tmp_path: Path) -> None:
    federation = ref.federation((5, 3, 8))
    settings, transport = recipe(method), Direct(federation, tmp_path)
    made = ready(settings, transport, list(federation.ids))
    Training(made.asking.recipe, made.prepared).play()
    expected = simulated(settings, federation)
    for name in federation.ids:
        found = coterie.load(tmp_path / name)
        model, theirs = found.model(), expected.model(name)
        assert model.classes == theirs.classes
        x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        assert torch.equal(model(x), theirs(x))
        assert found.ids == (name,)


def test_the_folder_on_the_server_has_no_personal_models(tmp_path: Path) -> None:
    for method in ("pflego", "fedavg"):
        federation, folder = ref.federation((5, 3, 8)), tmp_path / method
        made = ready(recipe(method), Direct(federation, folder / "sites"), list(federation.ids))
        (folder / "run" / SERVER).mkdir(parents=True)
        run = Training(made.asking.recipe, made.prepared, folder / "run").play()
        found = coterie.load(folder / "run")
        assert torch.equal(found.shared["body.1.weight"], run.shared["body.1.weight"])
    assert found.model("client-0").classes == found.model("client-1").classes  # FedAvg has no other model
    with pytest.raises(UserError, match="the personal state of 'client-0' is at that site and not in this run"):
        coterie.load(tmp_path / "pflego" / "run").model("client-0")


def test_a_site_without_a_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match="has no model yet"):
        coterie.load(tmp_path)


@pytest.mark.parametrize(("method", "new"), [("pflego", "client-2"), ("fedavg", "client-1")])
def test_a_new_site_gets_a_model_of_its_own(method: str, new: str, tmp_path: Path) -> None:
    """With personal heads, it may have classes that no other site has."""
    federation = ref.federation((5, 3, 8, 8))
    transport = Direct(federation, tmp_path)
    transport.away = {new}
    made = ready(recipe(method), transport, sorted({*federation.ids} - {new}))
    run = Training(made.asking.recipe, made.prepared).play()
    transport.away = set()
    (welcomed,) = welcome(made, run.shared, transport, [new], pytest.fail)
    assert welcomed.name == new
    model = coterie.load(tmp_path / new).model()
    own = transport.own[new]
    x, y = own.x[own.splits["test"].row(0)], own.y[own.splits["test"].row(0)]
    labels = [own.labels[k] for k in y.tolist()]
    right = [model.classes[k] == label for k, label in zip(model(x.double()).argmax(1).tolist(), labels, strict=True)]
    assert welcomed.after == pytest.approx(sum(right) / len(right))
    assert "update" not in {kind for kind, name, *_ in transport.log if name == new}


def test_new_sites_are_welcomed_one_by_one(tmp_path: Path) -> None:
    """One that does not answer does not keep the others from getting their models."""
    federation = ref.federation((5, 3, 8, 8))
    away = {"client-2", "client-3"}
    transport = Direct(federation, tmp_path)
    transport.away = away
    made = ready(recipe("pflego"), transport, ["client-0", "client-1"])
    run = Training(made.asking.recipe, made.prepared).play()
    transport.away = {"client-2"}
    told: list[str] = []
    assert [each.name for each in welcome(made, run.shared, transport, sorted(away), told.append)] == ["client-3"]
    (sentence,) = told
    assert sentence.startswith("client-2 cannot be asked: ")


def test_a_new_site_whose_policy_refuses_is_left_out(tmp_path: Path) -> None:
    federation = ref.federation((5, 3, 8))
    transport = Direct(federation, tmp_path)
    transport.away = {"client-2"}
    made = ready(recipe("pflego"), transport, ["client-0", "client-1"])
    run = Training(made.asking.recipe, made.prepared).play()
    transport.away = set()
    (tmp_path / "client-2").mkdir()
    (tmp_path / "client-2" / "policy.toml").write_text('mode = "accept-listed"\n')
    told: list[str] = []
    assert not welcome(made, run.shared, transport, ["client-2"], told.append)
    assert told == ["client-2: the policy accepts only the runs that it lists, and this run is not one of them"]
    (tmp_path / "client-2" / "runs").mkdir(exist_ok=True)
    with pytest.raises(UserError, match="has no model yet"):
        coterie.load(tmp_path / "client-2")


def test_a_refusal_that_is_repeated_is_logged_once(tmp_path: Path) -> None:
    federation = ref.federation((5, 3))
    transport = Direct(federation, tmp_path)
    ready(recipe("pflego"), transport, list(federation.ids))
    request = next(request for kind, name, request, *_ in transport.log if (kind, name) == ("announce", "client-0"))
    (tmp_path / "client-0" / "policy.toml").write_text('mode = "accept-listed"\n')
    agent = transport.agent("client-0")
    assert [decode(agent.answer(request)).kind for _ in range(3)] == ["refused"] * 3
    assert [each.kind for each in sent.read(tmp_path / "client-0")].count("refused") == 1
