"""FedDecay against its paper: rounds by hand in NumPy, exact limits, and Table 1 on quadratics."""

import math

import numpy as np
import pytest
import torch

import reference as ref
from coterie.clients.vmap import Vmap
from coterie.core.steps import minibatch
from coterie.errors import UserError
from coterie.methods import FedAvg, FedDecay, FedSGD
from coterie.methods.feddecay import emphasis, emphasis_limit
from engines import assert_same_rounds
from laboratory import LINEAR, least_squares, vector

ALL = ref.BODY + ref.HEAD


def message(setup, client, index=1):
    shared, rnd = setup.task.shared_model(), ref.announced(setup, 1, index)
    return setup.method.local_update(setup.task, shared, {}, setup.data(client, "train", index), rnd).tensors


def played(method, cohort=(0, 1, 2), r=3):
    setup = ref.setup(method)
    return ref.play(setup, setup.task.shared_model(), {}, ref.store(setup), list(cohort), ref.announced(setup, r))


def batches(setup, client):
    data = setup.data(client, "train", 1)
    for k in range(setup.method.tau):
        batch = minibatch(data, setup.method.batch_size, k)
        yield batch.x[batch.mask].numpy(), batch.y[batch.mask].numpy()


def walk(params, examples, rates):
    """Take gradient steps. Returns (final parameters, gradients)."""
    gradients = []
    for (x, y), rate in zip(examples, rates, strict=True):
        gradients.append(ref.loss_and_gradient(params, x, y)[1])
        params = ref.step(params, gradients[-1], rate, ALL)
    return params, gradients


def test_two_rounds_by_hand():
    """Decay starts again in each round, rates of the second round are eta / (1 + d), and clients have equal weights."""
    setup = ref.setup(FedDecay(tau=3, eta=0.4, eta_decay=0.25, beta=0.5))
    shared, store = setup.task.shared_model(), ref.store(setup)
    w = ref.arrays(shared)
    for index, (rates, cohort) in enumerate((([0.4, 0.2, 0.1], [0, 2, 3]), ([0.32, 0.16, 0.08], [1, 2])), 1):
        ends = [walk(w, [ref.examples(setup, i)] * 3, rates)[0] for i in cohort]
        w = {name: sum(end[name] for end in ends) / len(cohort) for name in ALL}
        shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index)).shared
        ref.assert_same(shared, w)


def test_clients_may_count_by_size():
    sizes, rnd = torch.tensor([1.0, 3.0]), ref.announced(ref.setup(FedDecay()), 2)
    assert FedDecay().weights(sizes, rnd).tolist() == [0.5, 0.5]
    assert FedDecay(users="sizes").weights(sizes, rnd).tolist() == [0.25, 0.75]


def test_equation_8():
    """The displacement is -eta times the decayed sum of the gradients."""
    setup = ref.setup(FedDecay(tau=4, eta=0.3, beta=0.7))
    factors = 0.7 ** np.arange(4)
    _, gradients = walk(ref.arrays(setup.task.initial), [ref.examples(setup, 2)] * 4, 0.3 * factors)
    expected = {name: -0.3 * sum(f * g[name] for f, g in zip(factors, gradients, strict=True)) for name in ALL}
    ref.assert_same(message(setup, 2), expected)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"beta": 0.5}, [1, 0.5, 0.25, 0.125]),
        ({"beta": 0.6, "decay": "linear"}, [1, 0.6, 0.2, 0]),
        ({"beta": 1.0, "decay": "linear"}, [1, 1, 1, 1]),
        ({"beta": 0.0, "decay": "linear"}, [1, 0, 0, 0]),
        ({"beta": 0.0}, [1, 0, 0, 0]),
        ({"decay": [2.0, 0.5]}, [2, 0.5, 0.5, 0.5]),
        ({"decay": [1.0, 0.9, 0.8, 0.7, 0.6]}, [1, 0.9, 0.8, 0.7]),
    ],
)
def test_schemes(options, factors):
    assert FedDecay(**options).factors(4) == pytest.approx(factors, abs=1e-15)


def test_a_scheme_has_at_least_one_factor_and_beta_is_a_share():
    for wrong in ({"decay": []}, {"beta": 1.5}, {"decay": [-1.0]}):
        with pytest.raises(UserError):
            FedDecay(**wrong)


@pytest.mark.parametrize(("client", "epochs"), [(2, [0, 0, 0, 1, 1, 1, 2]), (1, [0, 1, 2, 3, 4, 5, 6])])
def test_epochs_are_the_clients_own(client, epochs):
    """In batches of 3, an epoch is three batches for 8 examples and one batch for 3 examples."""
    setup = ref.setup(FedDecay(tau=7, eta=0.4, beta=0.5, unit="epoch", batch_size=3))
    start = ref.arrays(setup.task.initial)
    end, _ = walk(start, batches(setup, client), [0.4 * 0.5**e for e in epochs])
    ref.assert_same(message(setup, client), {name: end[name] - start[name] for name in ALL})


def test_the_authors_form_shrinks_what_an_epoch_moved():
    """The round ends within the third epoch, which is shrunk like the first two."""
    setup = ref.setup(FedDecay(tau=7, eta=0.4, beta=0.5, unit="epoch", form="displacement", batch_size=3))
    start = w = ref.arrays(setup.task.initial)
    drawn = list(batches(setup, 2))
    for e, epoch in enumerate((drawn[:3], drawn[3:6], drawn[6:])):
        end, _ = walk(w, epoch, [0.4] * len(epoch))
        w = {name: w[name] + 0.5**e * (end[name] - w[name]) for name in ALL}
    ref.assert_same(message(setup, 2), {name: w[name] - start[name] for name in ALL})
    rate = ref.setup(FedDecay(tau=7, eta=0.4, beta=0.5, unit="epoch", batch_size=3))
    assert not torch.allclose(message(rate, 2)["head.weight"], message(setup, 2)["head.weight"], rtol=1e-3)


@pytest.mark.parametrize(("client", "length"), [(2, 3), (0, 2)])
def test_a_round_of_epochs(client, length):
    """Clients have 8 and 5 examples in batches of 3. In units of steps, decay does not start again with an epoch."""
    options = {"tau": "3 epochs", "eta": 0.4, "beta": 0.5, "batch_size": 3}
    of_steps = ref.setup(FedDecay(**{**options, "tau": 3 * length}))
    start, drawn = ref.arrays(of_steps.task.initial), list(batches(of_steps, client))
    for unit, powers in (("epoch", np.arange(3 * length) // length), ("step", np.arange(3 * length))):
        end, _ = walk(start, drawn, 0.4 * 0.5**powers)
        sent = message(ref.setup(FedDecay(**options, unit=unit)), client)
        ref.assert_same(sent, {name: end[name] - start[name] for name in ALL})
    w = start
    for e in range(3):
        end, _ = walk(w, drawn[e * length : (e + 1) * length], [0.4] * length)
        w = {name: w[name] + 0.5**e * (end[name] - w[name]) for name in ALL}
    sent = message(ref.setup(FedDecay(**options, unit="epoch", form="displacement")), client)
    ref.assert_same(sent, {name: w[name] - start[name] for name in ALL})


@pytest.mark.parametrize(("unit", "batch_size"), [("epoch", 0), ("step", 3)])
def test_the_forms_are_one_where_a_unit_is_one_batch(unit, batch_size):
    forms = [
        message(ref.setup(FedDecay(tau=5, eta=0.4, unit=unit, form=form, batch_size=batch_size)), 2)
        for form in ("rate", "displacement")
    ]
    ref.assert_same(forms[0], ref.arrays(forms[1]))


@pytest.mark.parametrize("form", ["rate", "displacement"])
@pytest.mark.parametrize(("tau", "unit"), [(6, "epoch"), ("3 epochs", "epoch"), ("3 epochs", "step")])
def test_engines_agree_on_epochs_of_different_length(tau, unit, form):
    setup = ref.setup(FedDecay(tau=tau, unit=unit, form=form, batch_size=2), ref.federation((9, 3, 12, 1, 7)))
    assert_same_rounds(setup, Vmap(), [[0, 1, 2, 3, 4], [2, 4]], 1e-10)


@pytest.mark.parametrize("batch_size", [0, 2])
def test_without_decay_it_is_fedavg_to_the_bit(batch_size):
    one = played(FedDecay(tau=4, eta=0.3, beta=1.0, users="sizes", batch_size=batch_size))
    other = played(FedAvg(tau=4, eta=0.3, batch_size=batch_size))
    ref.assert_same(one.shared, ref.arrays(other.shared), 0)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("batch_size", [0, 2])
@pytest.mark.parametrize("decay", ["exponential", "linear"])
def test_with_all_decay_it_is_fedsgd_to_the_bit(decay, batch_size):
    one = played(FedDecay(tau=4, eta=0.3, beta=0.0, decay=decay, batch_size=batch_size))
    other = played(FedSGD(eta=0.3, users="equal", batch_size=batch_size))
    ref.assert_same(one.shared, ref.arrays(other.shared), 0)


def test_adaptation_does_not_decay():
    setup = ref.setup(FedDecay(eta=0.3, beta=0.2))
    shared = setup.task.shared_model()
    adapted = setup.method.adapt(setup.task, shared, {}, setup.data(0, "train", 0), 4)
    ref.assert_same(adapted, walk(ref.arrays(shared), [ref.examples(setup, 0)] * 4, [0.3] * 4)[0])


def coefficients(decay, beta, K):
    """Return the coefficients of the gradient, and of -eta times the Hessian-gradient product, in what is sent.

    For a quadratic this is a polynomial in eta of degree K-1, which K rounds with different rates determine.
    """
    etas, rows = np.linspace(0.02, 0.2, K), []
    for eta in etas:
        setup, problems = least_squares(FedDecay(tau=K, eta=float(eta), beta=beta, decay=decay))
        shared = setup.task.shared_model()
        rows.append(vector(message(setup, 0), names=LINEAR) / -eta)
    constant, linear = np.linalg.solve(np.vander(etas, increasing=True), np.array(rows))[:2]
    g = problems[0].gradient(vector(shared, names=LINEAR))
    Hg = problems[0].H @ g
    found = constant @ g / (g @ g), -linear @ Hg / (Hg @ Hg)
    np.testing.assert_allclose(constant, found[0] * g, rtol=1e-6)
    np.testing.assert_allclose(linear, -found[1] * Hg, rtol=1e-6)
    return found


@pytest.mark.parametrize("K", [2, 3, 4])
@pytest.mark.parametrize("beta", [0.3, 0.8])
def test_equation_10_has_the_factor_of_appendix_a1(beta, K):
    printed = (1 - beta ** (K - 1)) * (1 - beta**K) / ((1 + beta) * (1 - beta) ** 2)
    first, second = coefficients("exponential", beta, K)
    assert first == pytest.approx((1 - beta**K) / (1 - beta), rel=1e-6)
    assert second == pytest.approx(beta * printed, rel=1e-6)
    assert second != pytest.approx(printed, rel=0.1)
    assert emphasis([0.05 * beta**k for k in range(K)]) == pytest.approx(0.05 * second / first, rel=1e-6)


@pytest.mark.parametrize("decay", ["linear", [1.0, 0.2, 0.7]])
def test_emphasis_of_any_sequence(decay):
    method = FedDecay(beta=0.6, decay=decay)
    first, second = coefficients(decay, 0.6, 3)
    assert emphasis([0.05 * each for each in method.factors(3)]) == pytest.approx(0.05 * second / first, rel=1e-6)


def test_table_1():
    eta, K = 0.3, 6
    assert emphasis([eta]) == 0
    assert emphasis([eta] * K) == pytest.approx((K - 1) * eta / 2)
    assert emphasis([eta] * K, [0] * (K - 1) + [1]) == pytest.approx((K - 1) * eta)
    for beta in (0.2, 0.9):
        rates = [eta * beta**k for k in range(K)]
        assert emphasis(rates) == pytest.approx((beta - beta**K) * eta / (1 - beta**2))
        endless = [eta * beta**k for k in range(500)]
        assert (
            emphasis(endless) == pytest.approx(emphasis_limit(eta, beta)) == pytest.approx(beta * eta / (1 - beta**2))
        )
    assert emphasis_limit(eta, 0.0) == 0
    assert emphasis_limit(eta, 1.0) == math.inf
