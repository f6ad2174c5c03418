"""Settings that are given by client name, in methods that mix a shared and a local model."""

from dataclasses import replace

import numpy as np
import pytest

import coterie
import reference as ref
from coterie.errors import UserError
from coterie.methods import FLIX, IScaffnew, Scafflix
from coterie.models.logreg import LogReg
from coterie.prepare import prepare
from coterie.recipe import Recipe

SHARES = {"client-0": 0.1, "client-1": 0.9, "client-2": 0.5, "client-3": 0.2}


def calibrated(method):
    recipe = replace(Recipe.parse({"engine": {"dtype": "float64"}}), method=method, model=LogReg())
    return prepare(recipe, ref.federation()).clients.load


def smoothness(load, i):
    """Return L_i of softmax regression with a bias: half the largest eigenvalue of the features' second moments."""
    x, _ = ref.examples(ref.Game(load), i)
    phi = np.hstack([x, np.ones((len(x), 1))])
    return 0.5 * np.linalg.eigvalsh(phi.T @ phi / len(x))[-1]


def test_the_step_of_flix_is_for_the_mean_of_alpha_squared_times_L():
    load = calibrated(FLIX(alpha=SHARES, gamma="1/L"))
    expected = 1 / np.mean([SHARES[f"client-{i}"] ** 2 * smoothness(load, i) for i in range(4)])
    assert load.work.method.gamma == pytest.approx(expected, rel=1e-9)
    equal = calibrated(FLIX(alpha=0.5, gamma="1/L")).work.method.gamma
    assert equal == pytest.approx(1 / (0.25 * np.mean([smoothness(load, i) for i in range(4)])), rel=1e-9)


@pytest.mark.parametrize("cls", [FLIX, Scafflix])
def test_a_name_that_is_no_client_is_refused(cls):
    with pytest.raises(UserError, match=r"method\.alpha names 'client-9' \(did you mean 'client-\d'\?\)"):
        calibrated(cls(alpha={**SHARES, "client-9": 0.5}))


def test_the_step_of_flix_from_the_trace():
    load = calibrated(FLIX(alpha=SHARES, gamma="1/trace"))
    bounds = []
    for i in range(4):
        x, _ = ref.examples(ref.Game(load), i)
        bounds.append(SHARES[f"client-{i}"] ** 2 * 0.5 * np.mean((x**2).sum(1) + 1))  # half the trace, with a bias
    assert load.work.method.gamma == pytest.approx(1 / np.mean(bounds), rel=1e-9)


@pytest.mark.parametrize("cls", [IScaffnew, Scafflix])
def test_a_step_size_for_a_name_that_is_no_client_is_refused(cls):
    with pytest.raises(UserError, match=r"method\.gamma names 'client-9'"):
        calibrated(cls(gamma={**SHARES, "client-9": 0.5}))


@pytest.mark.parametrize("cls", [FLIX, Scafflix])
def test_a_new_client_takes_the_value_of_the_name_new(cls):
    with pytest.raises(UserError, match=r'under the name "new"'):
        coterie.train(ref.federation(), model="logreg", method=cls(alpha={"client-0": 0.1}), rounds=1)
    shares = {"client-0": 0.1, "new": 0.7}
    run = coterie.train(ref.federation(), model="logreg", method=cls(alpha=shares), rounds=1)
    assert [float(run.personal(client)[".alpha"]) for client in run.ids[:2]] == pytest.approx([0.1, 0.7])
    x, _ = ref.examples(ref.setup(FLIX()), 0)
    assert len(run.personalize(x, np.array([1, 2, 3, 1, 2])).classes) == 5


@pytest.mark.parametrize("cls", [IScaffnew, Scafflix])
def test_step_sizes_by_name(cls):
    """The values of a run with the same steps from theory, written down by name, give the same run."""
    load = calibrated(cls(gamma="1/L", mu=0.1, p="optimal"))
    given = {f"client-{i}": 1 / (smoothness(load, i) + 0.1) for i in range(4)}
    by_name = calibrated(cls(gamma=given, mu=0.1, p="optimal"))
    assert by_name.work.method.p == pytest.approx(load.work.method.p, rel=1e-9)
    for each in (load, by_name):
        personal = ref.store(ref.Game(each))[2]
        assert float(personal[".gamma"]) == pytest.approx(given["client-2"], rel=1e-9)
