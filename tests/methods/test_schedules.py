"""Methods with a schedule of local rates: rounds by hand, the limit of no decay to the bit, and engines."""

from dataclasses import replace

import numpy as np
import pytest

import reference as ref
from coterie.clients.vmap import Vmap
from coterie.core.schedule import Place, schedule
from coterie.core.steps import minibatch
from coterie.core.tree import shift
from coterie.errors import UserError
from coterie.methods import Ditto, FedAvg, FedDecay, FedPer, FedProx, FedRep
from engines import assert_same_rounds

ALL = ref.BODY + ref.HEAD
METHODS = [
    FedProx(tau=4, eta=0.3, mu=0.5),
    FedPer(tau=4, beta=0.3),
    FedRep(tau=6, body_steps=4, beta=0.3, momentum=0.5),
    Ditto(tau=4, eta=0.3, beta=0.1, lam=0.5),
]
NAMES = [type(method).__name__ for method in METHODS]
TEXTS = ["cosine 0.1", "polynomial 2", "step 0.5 every 2", "inverse 0.25", "exponential 0.6", "linear 0.6"]


def descent(params, examples, rates, names, pull=0.0, momentum=0.0):
    """Take gradient steps with a proximal term towards the start, and with momentum."""
    start, velocity = params, {name: np.zeros_like(params[name]) for name in names}
    for (x, y), rate in zip(examples, rates, strict=True):
        _, gradient = ref.loss_and_gradient(params, x, y)
        g = {name: gradient[name] + pull * (params[name] - start[name]) for name in names}
        velocity = {name: momentum * velocity[name] + g[name] for name in names}
        params = ref.step(params, velocity, rate, names)
    return params


def by_hand(method, setup, shared, personal, client, factors):
    """Return what the shared model of a client is after its steps, with these factors of its rate."""
    w, all_of = {**ref.arrays(shared), **ref.arrays(personal)}, ref.examples(setup, client)
    if isinstance(method, FedRep):
        w = descent(w, [all_of] * 2, [0.3] * 2, ref.HEAD, momentum=0.5)
        return descent(w, [all_of] * 4, 0.3 * factors, ref.BODY, momentum=0.5)
    return descent(w, [all_of] * 4, 0.3 * factors, ALL, pull=0.5 if isinstance(method, FedProx) else 0.0)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_the_second_round_by_hand(method, text):
    """Only "inverse" remembers that four steps were taken before."""
    setup = ref.setup(replace(method, decay=text))
    k, shared = np.arange(4), setup.method.init_shared(setup.task)
    factors = {
        "cosine 0.1": 0.1 + 0.45 * (1 + np.cos(np.pi * k / 4)),
        "polynomial 2": (1 - k / 4) ** 2,
        "step 0.5 every 2": np.array([1, 1, 0.5, 0.5]),
        "inverse 0.25": 1 / (1 + 0.25 * (4 + k)),
        "exponential 0.6": 0.6**k,
        "linear 0.6": np.array([1, 0.6, 0.2, 0]),
    }[text]
    for client in (0, 2):
        personal, data = ref.store(setup)[client], setup.data(client, "train", 2)
        sent = setup.method.local_update(setup.task, shared, personal, data, ref.announced(setup, 3, 2)).tensors
        after = by_hand(method, setup, shared, {} if isinstance(method, Ditto) else personal, client, factors)
        ref.assert_same(shift(shared, sent), {name: after[name] for name in shared})


@pytest.mark.parametrize("decay", ["none", [1.0], "exponential 1", "linear 1.0", "cosine 1", "step 1 every 3"])
@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_decay_of_ones_is_no_decay_to_the_bit(method, decay):
    played = []
    for each in (method, replace(method, decay=decay)):
        setup = ref.setup(each)
        kept, shared = ref.store(setup), each.init_shared(setup.task)
        for index in (1, 2):
            shared = ref.play(setup, shared, {}, kept, [0, 1, 2], ref.announced(setup, 3, index)).shared
        played.append({**shared, **{f"{i}.{name}": each for i in range(3) for name, each in kept[i].items()}})
    assert played[0].keys() == played[1].keys()
    assert all((played[0][name] == played[1][name]).all() for name in played[0])


@pytest.mark.parametrize("method", METHODS, ids=NAMES)
def test_a_client_adapts_without_decay(method):
    setup = ref.setup(method)
    shared, personal, data = method.init_shared(setup.task), ref.store(setup)[0], setup.data(0, "train", 0)
    plain, decayed = (
        each.adapt(setup.task, shared, personal, data, 3) for each in (method, replace(method, decay="cosine 0"))
    )
    ref.assert_same(plain, ref.arrays(decayed), 0)


def test_the_personal_model_of_ditto_does_not_decay():
    after = []
    for method in (METHODS[3], replace(METHODS[3], decay="cosine 0")):
        setup = ref.setup(method)
        shared, personal = setup.task.shared_model(), ref.store(setup)[0]
        data = setup.data(0, "train", 1)
        after.append(method.local_update(setup.task, shared, personal, data, ref.announced(setup, 1)).personal)
    ref.assert_same(after[0], ref.arrays(after[1]), 0)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("text", TEXTS)
def test_without_pull_fedprox_is_feddecay_by_size_to_the_bit(text):
    """The two share the schedule, so that all of FedDecay's are open to FedProx."""
    sent = []
    for method in (
        FedProx(tau=4, eta=0.3, mu=0.0, decay=text, batch_size=2),
        FedDecay(tau=4, eta=0.3, decay=text, users="sizes", batch_size=2),
    ):
        setup = ref.setup(method)
        shared = setup.task.shared_model()
        sent.append(ref.play(setup, shared, {}, ref.store(setup), [0, 1, 2], ref.announced(setup, 3, 2)).shared)
    ref.assert_same(sent[0], ref.arrays(sent[1]), 0)


@pytest.mark.parametrize(("client", "steps"), [(0, 6), (2, 8)])
def test_the_length_of_a_round_of_epochs_is_the_clients_own(client, steps):
    """Two epochs of 5 and of 8 examples in batches of 2 are 6 and 8 steps, over which the cosine falls."""
    setup = ref.setup(FedDecay(tau="2 epochs", eta=0.4, decay="cosine 0.1", batch_size=2))
    shared, data = setup.task.shared_model(), setup.data(client, "train", 1)
    drawn = [minibatch(data, 2, k) for k in range(steps)]
    examples = [(batch.x[batch.mask].numpy(), batch.y[batch.mask].numpy()) for batch in drawn]
    rates = 0.4 * (0.1 + 0.45 * (1 + np.cos(np.pi * np.arange(steps) / steps)))
    sent = setup.method.local_update(setup.task, shared, {}, data, ref.announced(setup, 1)).tensors
    ref.assert_same(shift(shared, sent), descent(ref.arrays(shared), examples, rates, ALL))


@pytest.mark.parametrize("unit", ["step", "epoch"])
@pytest.mark.parametrize("tau", [6, "3 epochs"])
@pytest.mark.parametrize("text", TEXTS[:4])
def test_engines_agree_on_clients_with_rounds_of_different_length(text, tau, unit):
    setup = ref.setup(FedDecay(tau=tau, decay=text, unit=unit, batch_size=2), ref.federation((9, 3, 12, 1, 7)))
    assert_same_rounds(setup, Vmap(), [[0, 1, 2, 3, 4], [2, 4]], 1e-10)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("text", ["polynomial 0.5", "inverse 0.25"])
def test_engines_agree_without_the_closed_form(text):
    setup = ref.setup(FedProx(tau="2 epochs", decay=text, batch_size=2), ref.federation((9, 3, 12, 1, 7)))
    assert_same_rounds(setup, Vmap(), [[0, 1, 2, 3, 4], [2, 4]], 1e-10)


def test_epochs_of_a_schedule_count_the_epochs_of_the_round():
    """Seven steps in batches of 3 are three epochs of 8 examples, so that the polynomial falls by thirds."""
    factors, sent = schedule("polynomial 1"), []
    assert [factors(Place(e, 3)) for e in range(3)] == pytest.approx([1, 2 / 3, 1 / 3])
    for decay in ("polynomial 1", [1.0, 2 / 3, 1 / 3]):
        setup = ref.setup(FedDecay(tau=7, eta=0.4, decay=decay, unit="epoch", batch_size=3))
        data, shared = setup.data(2, "train", 1), setup.task.shared_model()
        sent.append(setup.method.local_update(setup.task, shared, {}, data, ref.announced(setup, 1)).tensors)
    ref.assert_same(sent[0], ref.arrays(sent[1]))


def test_with_all_decay_in_epochs_it_is_fedavg_with_one_epoch():
    """Only in steps is it FedSGD."""
    sent = []
    for method in (
        FedDecay(tau="3 epochs", eta=0.4, beta=0.0, unit="epoch", batch_size=3),
        FedAvg(tau="1 epoch", eta=0.4, users="equal", batch_size=3),
    ):
        setup = ref.setup(method)
        shared, rnd = setup.task.shared_model(), ref.announced(setup, 3)
        sent.append(ref.play(setup, shared, {}, ref.store(setup), [0, 1, 2], rnd).shared)
    ref.assert_same(sent[0], ref.arrays(sent[1]))


def test_the_authors_form_needs_plain_steps():
    with pytest.raises(UserError, match=r'method\.form = "displacement" needs method\.solver = "gd", not "adam"'):
        ref.announced(ref.setup(FedDecay(form="displacement", solver="adam")), 1)


@pytest.mark.parametrize("solver", ["momentum", "adam"])
def test_a_round_of_another_solver_by_hand(solver):
    """Velocity and moments start from zero in each round, and both follow the schedule of the rate."""
    setup = ref.setup(FedDecay(tau=4, eta=0.05, beta=0.7, solver=solver))
    shared = setup.task.shared_model()
    for index in (1, 2):
        w, (x, y) = ref.arrays(shared), ref.examples(setup, 2)
        m, v = ({name: np.zeros_like(w[name]) for name in ALL} for _ in range(2))
        for k in range(4):
            _, g = ref.loss_and_gradient(w, x, y)
            if solver == "momentum":
                m = {name: 0.9 * m[name] + g[name] for name in ALL}
                move = m
            else:
                m = {name: 0.9 * m[name] + 0.1 * g[name] for name in ALL}
                v = {name: 0.999 * v[name] + 0.001 * g[name] ** 2 for name in ALL}
                unbiased = {name: (m[name] / (1 - 0.9 ** (k + 1)), v[name] / (1 - 0.999 ** (k + 1))) for name in ALL}
                move = {name: first / (np.sqrt(second) + 1e-8) for name, (first, second) in unbiased.items()}
            w = ref.step(w, move, 0.05 * 0.7**k, ALL)
        played = ref.play(setup, shared, {}, ref.store(setup), [2], ref.announced(setup, 1, index))
        shared = played.shared
        ref.assert_same(shared, w)


@pytest.mark.parametrize("solver", ["momentum", "adam"])
@pytest.mark.parametrize(("tau", "decay"), [(5, "exponential"), ("2 epochs", "cosine 0.1")])
def test_engines_agree_on_other_solvers(solver, tau, decay):
    method = FedDecay(tau=tau, eta=0.02, decay=decay, solver=solver, batch_size=2)
    assert_same_rounds(ref.setup(method, ref.federation((9, 3, 12, 1, 7))), Vmap(), [[0, 1, 2, 3, 4], [2, 4]], 1e-10)


def test_adaptation_uses_the_solver_at_a_constant_rate():
    setup = ref.setup(FedDecay(tau=3, eta=0.05, beta=0.0, solver="adam"))
    shared, data = setup.task.shared_model(), setup.data(0, "train", 1)
    full = replace(setup.method, beta=1.0)
    sent = full.local_update(setup.task, shared, {}, data, full.plan(ref.announced(setup, 1))).tensors
    ref.assert_same(setup.method.adapt(setup.task, shared, {}, data, 3), ref.arrays(shift(shared, sent)))


def test_the_schedule_argued_against_ends_up_as_fedavg_in_its_balance():
    """With c / (t + d) the factors of a late round are nearly equal, so the share of later gradients grows to 1."""
    last = []
    for index in (1, 5, 500):
        rates = [schedule("inverse 0.5")(Place(k, 10, index)) for k in range(10)]
        last.append(rates[-1] / rates[0])
    assert last == sorted(last)
    assert last[0] < 0.2
    assert last[-1] > 0.99
    decays = [schedule("exponential 0.6")(Place(9, 10, index)) for index in (1, 5, 500)]
    assert len(set(decays)) == 1
