"""APFL against its paper: rounds by hand in NumPy, with FedAvg and local training as its limits."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie.core.steps import minibatch
from coterie.core.tree import pick, shift, within
from coterie.methods import APFL, FedAvg, Local
from coterie.models.module import Own
from coterie.streams import torch_seeded
from engines import Norm

ALL = ref.BODY + ref.HEAD


def mixed(alpha, v, w):
    return {name: alpha * v[name] + (1 - alpha) * w[name] for name in ALL}


def visit(w, v, alpha, batches, eta, adaptive=True):
    """Run the client's part of Algorithm 1. Returns (w_i, v_i, α_i, α_i before it is limited, loss)."""
    before = alpha
    for step, (x, y) in enumerate(batches):
        loss, g = ref.loss_and_gradient(mixed(alpha, v, w), x, y)
        g_w = ref.loss_and_gradient(w, x, y)[1]
        slope = sum(((v[name] - w[name]) * g[name]).sum() for name in ALL)
        w, v = ref.step(w, g_w, eta, ALL), ref.step(v, g, eta * alpha, ALL)
        if adaptive and step == 0:
            before = alpha - eta * slope
            alpha = min(max(before, 0.0), 1.0)
    return w, v, alpha, before, loss


@pytest.mark.parametrize(
    ("alpha", "eta", "limited"), [(0.5, 0.4, set()), (0.995, 0.4, {"above"}), (0.01, 0.9, {"below"})]
)
def test_three_rounds_by_hand(alpha, eta, limited):
    """Mixing weights move once a client returns with v_i ≠ w. In the last two cases they reach a limit."""
    setup = ref.setup(APFL(tau=3, eta=eta, alpha=alpha))
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    w = ref.arrays(shared)
    own, weights, seen, reached = dict.fromkeys(range(4), w), dict.fromkeys(range(4), alpha), set(), set()
    for index, cohort in enumerate(([0, 1, 2], [1, 2, 3], [2, 0]), start=1):
        rnd, ends, losses = ref.announced(setup, len(cohort), index), {}, []
        for i in cohort:
            ends[i], own[i], weights[i], free, loss = visit(w, own[i], weights[i], [ref.examples(setup, i)] * 3, eta)
            reached |= {"above"} if free > 1 else {"below"} if free < 0 else set()
            losses.append(loss)
            reply = setup.method.local_update(setup.task, shared, store[i], setup.data(i, "train", index), rnd)
            assert reply.tensors.keys() == set(ALL)  # v_i and α_i stay with the client
            assert reply.numbers.keys() == {"loss"}
            scored = setup.method.personal_params(setup.task, shift(shared, reply.tensors), reply.personal)
            ref.assert_same(scored, mixed(weights[i], own[i], ends[i]))
        seen |= set(cohort)
        w = {name: sum(ends[i][name] for i in cohort) / len(cohort) for name in ALL}
        played = ref.play(setup, shared, {}, store, cohort, rnd)
        shared = played.shared
        ref.assert_same(shared, w)
        assert played.loss == pytest.approx(np.mean(losses), rel=1e-12)
        for i in range(4):
            ref.assert_same(within("v", store[i]), own[i])
            assert float(store[i][".alpha"]) == pytest.approx(weights[i], rel=0, abs=1e-12)
            assert bool(store[i][".visited"]) == (i in seen)
            model = mixed(weights[i], own[i], w) if i in seen else w
            ref.assert_same(setup.method.personal_params(setup.task, shared, store[i]), model)
    assert reached == limited
    assert weights[2] != alpha


def test_minibatches_are_common_to_both_models_and_only_the_first_moves_alpha():
    setup = ref.setup(APFL(tau=5, eta=0.4, batch_size=3))
    data, w = setup.data(2, "train", 1), ref.arrays(setup.task.initial)
    start = {name: value + 0.3 for name, value in setup.task.initial.items()}
    personal = {**ref.store(setup)[2], **{f".v.{name}": value for name, value in start.items()}}
    drawn = [minibatch(data, 3, step) for step in range(5)]
    batches = [(batch.x[batch.mask].numpy(), batch.y[batch.mask].numpy()) for batch in drawn]
    end, v, alpha, _, loss = visit(w, ref.arrays(start), 0.5, batches, 0.4)
    shared, rnd = setup.task.shared_model(), ref.announced(setup, 1)
    reply = setup.method.local_update(setup.task, shared, personal, data, rnd)
    ref.assert_same(reply.tensors, {name: end[name] - w[name] for name in ALL})
    ref.assert_same(within("v", reply.personal), v)
    assert float(reply.personal[".alpha"]) == pytest.approx(alpha, rel=0, abs=1e-12)
    assert alpha != 0.5
    assert float(reply.numbers["loss"]) == pytest.approx(loss, rel=1e-12)


def test_mixing_weights_stay_between_zero_and_one():
    """With a large rate they reach both limits, and can leave them again."""
    setup = ref.setup(APFL(tau=4, eta=1.5, alpha=0.05))
    shared, store, found = setup.method.init_shared(setup.task), ref.store(setup), []
    for index in range(1, 31):
        shared = ref.play(setup, shared, {}, store, [0, 1, 2, 3], ref.announced(setup, 4, index)).shared
        found.append([float(store[i][".alpha"]) for i in range(4)])
    found = np.array(found)
    assert ((found >= 0) & (found <= 1)).all()
    assert (found == 0).any()
    assert (found == 1).any()
    assert ((found > 0) & (found < 1)).any()
    after = (found[1:] > 0) & (found[1:] < 1)
    assert (after & ((found[:-1] == 0) | (found[:-1] == 1))).any()


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("batch_size", [0, 2])
def test_with_alpha_zero_it_is_fedavg_with_equal_clients_to_the_bit(batch_size):
    apfl = APFL(tau=3, eta=0.2, alpha=0.0, adaptive=False, batch_size=batch_size)
    fedavg = FedAvg(tau=3, eta=0.2, users="equal", batch_size=batch_size)
    sides = []
    for method in (apfl, fedavg):
        setup = ref.setup(method)
        shared, store = method.init_shared(setup.task), ref.store(setup)
        for index, cohort in enumerate(([0, 1, 2], [2, 0]), start=1):
            played = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index))
            shared = played.shared
        sides.append((shared, [method.personal_params(setup.task, shared, store[i]) for i in range(4)]))
    (mine, models), (theirs, their_models) = sides
    ref.assert_same(mine, ref.arrays(theirs), 0)
    for one, other in zip(models, their_models, strict=True):
        ref.assert_same(one, ref.arrays(other), 0)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("batch_size", [0, 2])
def test_with_alpha_one_the_own_model_is_local_training(batch_size):
    """The shared model is still that of FedAvg, and does not matter to the client."""
    apfl = APFL(tau=3, eta=0.2, alpha=1.0, adaptive=False, batch_size=batch_size)
    local = Local(tau=3, beta=0.2, batch_size=batch_size)
    setup, fedavg = ref.setup(apfl), ref.setup(FedAvg(tau=3, eta=0.2, users="equal", batch_size=batch_size))
    shared = theirs = setup.task.shared_model()
    store, alone = ref.store(setup), dict(setup.task.initial)
    for index in (1, 2):
        rnd = ref.announced(setup, 2, index)
        alone = local.local_update(setup.task, {}, alone, setup.data(2, "train", index), rnd).personal
        shared = ref.play(setup, shared, {}, store, [0, 2], rnd).shared
        theirs = ref.play(fedavg, theirs, {}, ref.store(fedavg), [0, 2], rnd).shared
        ref.assert_same(within("v", store[2]), ref.arrays(alone), 1e-15)
        ref.assert_same(apfl.personal_params(setup.task, shared, store[2]), ref.arrays(alone), 1e-15)
        ref.assert_same(shared, ref.arrays(theirs), 0)


def test_without_adaptive_alpha_the_weights_are_fixed():
    setup = ref.setup(APFL(tau=2, eta=0.5, alpha=0.3, adaptive=False))
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    for index in (1, 2):
        shared = ref.play(setup, shared, {}, store, [0, 2], ref.announced(setup, 2, index)).shared
    assert [float(store[i][".alpha"]) for i in range(4)] == [0.3] * 4


def test_who_was_never_visited_uses_and_adapts_the_shared_model():
    """It starts from v_i = w. A client that was visited continues from its own v_i. Both keep w and α_i fixed."""
    setup = ref.setup(APFL(eta=0.3, alpha=0.4))
    shared = {name: value + 0.1 for name, value in setup.task.shared_model().items()}
    w, (x, y), fresh = ref.arrays(shared), ref.examples(setup, 0), ref.store(setup)[0]
    visited = {**fresh, ".visited": torch.tensor(True)}
    ref.assert_same(setup.method.personal_params(setup.task, shared, fresh), w, 0)
    for personal, v in ((fresh, w), (visited, ref.arrays(setup.task.initial))):
        for _ in range(4):
            v = ref.step(v, ref.loss_and_gradient(mixed(0.4, v, w), x, y)[1], 0.3 * 0.4, ALL)
        adapted = setup.method.adapt(setup.task, shared, personal, setup.data(0, "train", 0), 4)
        ref.assert_same(within("v", adapted), v)
        assert float(adapted[".alpha"]) == 0.4
        ref.assert_same(setup.method.personal_params(setup.task, shared, adapted), mixed(0.4, v, w))


@pytest.mark.usefixtures("taped")
def test_the_mixture_has_batchnorm_statistics_of_its_own():
    """They follow passes of the mixture, and never travel. The shared statistics follow passes of w_i."""
    with torch_seeded(0):
        model = Own(net=Norm(), head_name="fc")
    sides = []
    for method in (APFL(tau=2, eta=0.3), FedAvg(tau=2, eta=0.3, users="equal")):
        setup = ref.setup(method, ref.federation((5, 3, 8)), model)
        shared, store = method.init_shared(setup.task), ref.store(setup)
        for index in (1, 2):
            shared = ref.play(setup, shared, {}, store, [0, 1], ref.announced(setup, 2, index)).shared
        sides.append((setup, shared, store))
    (setup, shared, store), (_, theirs, _) = sides
    ref.assert_same(shared, ref.arrays(theirs), 0)
    used = setup.method.personal_params(setup.task, shared, store[0])
    own = pick(store[0], setup.task.buffers)
    ref.assert_same(pick(used, setup.task.buffers), ref.arrays(own), 0)
    assert int(own["norm.num_batches_tracked"]) == 4
    assert not torch.allclose(own["norm.running_mean"], shared["norm.running_mean"])
    unvisited = setup.method.personal_params(setup.task, shared, store[2])
    ref.assert_same(unvisited, ref.arrays(shared), 0)
