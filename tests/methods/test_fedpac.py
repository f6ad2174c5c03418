"""FedPAC against its paper: rounds by hand in NumPy with class tables and combined heads, and its limits."""

import numpy as np
import pytest
import torch

import coterie
import reference as ref
from coterie.core.steps import minibatch
from coterie.core.tree import pick
from coterie.errors import UserError
from coterie.methods import FedPAC, FedRep
from coterie.models.mlp import MLP
from faces import brute_force

C = 5


def features_of(params, x):
    return np.maximum(x.reshape(len(x), -1) @ params[ref.BODY[0]].T + params[ref.BODY[1]], 0)


def statistics(f, y):
    """Return n_y / N, the class means (zero for absent classes), h and V as the paper defines them."""
    N = len(y)
    p = np.array([(y == c).sum() / N for c in range(C)])
    mu = np.array([f[y == c].mean(0) if p[c] else np.zeros(f.shape[1]) for c in range(C)])
    squares = [(f[y == c] ** 2).sum(1).mean() if p[c] else 0.0 for c in range(C)]
    V = sum(p[c] * squares[c] - p[c] ** 2 * (mu[c] ** 2).sum() for c in range(C)) / N
    return p, mu, p[:, None] * mu, V


def body_step(params, x, y, rate, lam, centroids):
    """Descend along the gradient of cross-entropy + lam * mean over examples and coordinates of (f - c_y)²."""
    _, g = ref.loss_and_gradient(params, x, y)
    f = features_of(params, x)
    back = lam * 2 * (f - centroids[y]) / f.size * (f > 0)
    g = {ref.BODY[0]: g[ref.BODY[0]] + back.T @ x.reshape(len(x), -1), ref.BODY[1]: g[ref.BODY[1]] + back.sum(0)}
    return ref.step(params, g, rate, ref.BODY)


def combined(heads, h, V):
    """Return the head of each client as the paper combines it."""
    found = {}
    for i in heads:
        order = list(heads)
        D = np.array([(h[i] - h[j]).ravel() for j in order])
        a = brute_force(D @ D.T + np.diag([V[j] for j in order]))
        found[i] = {name: sum(a[k] * heads[j][name] for k, j in enumerate(order)) for name in ref.HEAD}
    return found


@pytest.mark.parametrize("collaborate", [True, False])
def test_three_rounds_by_hand(collaborate):
    lam, method = 0.8, FedPAC(tau=3, head_steps=2, eta_f=0.2, eta_g=0.3, lam=0.8, collaborate=collaborate)
    setup, tolerance = ref.setup(method), 1e-8 if collaborate else 1e-12  # the solver prefers even weights a little
    shared, store, sizes = method.init_shared(setup.task), ref.store(setup), setup.federation.sizes()
    theta, heads = ref.arrays(pick(shared, ref.BODY)), {i: ref.arrays(ref.store(setup)[i]) for i in range(4)}
    c, held, complete = np.zeros((C, 3)), np.zeros(C, dtype=bool), []
    for index, cohort in enumerate(([0, 1, 2], [1, 2], [0, 2, 3]), start=1):
        complete.append(bool(held.all()))
        bodies, h, V, sums, counts = {}, {}, {}, np.zeros((C, 3)), np.zeros(C)
        for i in cohort:
            x, y = ref.examples(setup, i)
            params = {**theta, **heads[i]}
            _, own, h[i], V[i] = statistics(features_of(params, x), y)
            for _ in range(2):
                params = ref.step(params, ref.loss_and_gradient(params, x, y)[1], 0.3, ref.HEAD)
            centroids = np.where(held[:, None], c, own)
            for _ in range(3):
                params = body_step(params, x, y, 0.2, lam if held.any() else 0.0, centroids)
            bodies[i], heads[i] = params, {name: params[name] for name in ref.HEAD}
            for each, feature in zip(y, features_of(params, x), strict=True):
                sums[each], counts[each] = sums[each] + feature, counts[each] + 1
        total = sum(sizes[i] for i in cohort)
        theta = {name: sum(sizes[i] / total * bodies[i][name] for i in cohort) for name in ref.BODY}
        held, c = counts > 0, sums / np.maximum(counts, 1)[:, None]
        heads |= combined({i: heads[i] for i in cohort}, h, V) if collaborate else {}

        played = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index))
        shared = played.shared
        ref.assert_same(pick(shared, ref.BODY), theta, tolerance)
        np.testing.assert_allclose(shared[".p"].numpy(), counts / total, rtol=0, atol=tolerance)
        np.testing.assert_allclose(shared[".pc"].numpy(), c * counts[:, None] / total, rtol=0, atol=tolerance)
        for i in range(4):
            ref.assert_same(store[i], heads[i], tolerance)
    assert complete == [False, True, False], "rounds with and without a centroid of each class are part of the test"


def test_the_heads_of_the_hand_computed_rounds_are_really_mixed():
    """Neither of one client only nor all alike, or else the test above would show little."""
    method = FedPAC(tau=3, head_steps=2, eta_f=0.2, eta_g=0.3)
    setup = ref.setup(method)
    shared, store = method.init_shared(setup.task), ref.store(setup)
    replies = [
        method.local_update(setup.task, shared, store[i], setup.data(i, "train", 1), ref.announced(setup, 3))
        for i in range(3)
    ]
    letters = {name: torch.stack([reply.letter[name] for reply in replies]) for name in replies[0].letter}
    heads = torch.eye(3, dtype=torch.float64)
    a = method.exchange({".h": letters[".h"], ".V": letters[".V"], "weights": heads}, ref.announced(setup, 3))[
        "weights"
    ]
    torch.testing.assert_close(a.sum(1), torch.ones(3, dtype=torch.float64))
    assert ((a > 0.05).sum(1) > 1).all()
    assert (a.diag() == a.amax(1)).all(), "each client's own head weighs most"
    assert not torch.allclose(a[0], a[1], atol=0.01)


def test_without_alignment_and_collaboration_it_is_fedrep():
    """Of one head rate and one body rate, which FedRep has in common."""
    pac = FedPAC(tau=4, head_steps=3, eta_f=0.1, eta_g=0.1, lam=0.0, collaborate=False)
    results = []
    for method in (pac, FedRep(tau=7, body_steps=4, beta=0.1)):
        setup = ref.setup(method, model=MLP(hidden=[3], labels="global"))
        shared, store = method.init_shared(setup.task), ref.store(setup)
        for index, cohort in enumerate(([0, 1, 2], [1, 3]), 1):
            shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, 3, index)).shared
        results.append((pick(shared, ref.BODY), [store[i] for i in range(4)]))
    (body, heads), (their_body, their_heads) = results
    ref.assert_same(body, ref.arrays(their_body), 1e-12)
    for one, other in zip(heads, their_heads, strict=True):
        ref.assert_same(one, ref.arrays(other), 1e-12)


def test_a_cohort_of_one_keeps_its_head():
    results = []
    for collaborate in (True, False):
        setup = ref.setup(FedPAC(tau=2, collaborate=collaborate))
        shared, store = setup.method.init_shared(setup.task), ref.store(setup)
        ref.play(setup, shared, {}, store, [2], ref.announced(setup, 1))
        results.append(store[2])
    ref.assert_same(results[0], ref.arrays(results[1]), 0)


def test_identical_clients_get_the_mean_of_their_heads():
    setup = ref.setup(FedPAC(tau=2, eta_g=0.3, lam=0.0), ref.twins(3))
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    alone = ref.store(setup.having(method=FedPAC(tau=2, eta_g=0.3, lam=0.0, collaborate=False)))
    rnd = ref.announced(setup, 3)
    ref.play(setup, shared, {}, store, [0, 1, 2], rnd)
    for i in range(3):
        ref.play(ref.Game(alone.load), shared, {}, alone, [i], rnd)
    assert not torch.equal(alone[0]["head.weight"], alone[1]["head.weight"]), "heads start from different values"
    mean = {name: sum(alone[i][name] for i in range(3)) / 3 for name in ref.HEAD}
    for i in range(3):
        ref.assert_same(store[i], ref.arrays(mean), 1e-9)


def test_minibatches_of_both_phases():
    """Two epochs on the head and one on the body, each from the first shuffle of the round."""
    setup = ref.setup(FedPAC(tau="1 epoch", head_steps="2 epochs", batch_size=3, eta_g=0.3, eta_f=0.2, lam=0.0))
    data, shared = setup.data(2, "train", 1), setup.method.init_shared(setup.task)
    params = ref.arrays({**pick(shared, ref.BODY), **ref.store(setup)[2]})
    for names, rate, steps in ((ref.HEAD, 0.3, 6), (ref.BODY, 0.2, 3)):  # of 8 examples
        for step in range(steps):
            batch = minibatch(data, 3, step)
            params = ref.step(params, ref.loss_and_gradient(params, batch.x.numpy(), batch.y.numpy())[1], rate, names)
    reply = setup.method.local_update(setup.task, shared, ref.store(setup)[2], data, ref.announced(setup, 1))
    ref.assert_same(reply.personal, {name: params[name] for name in ref.HEAD})
    moved = {name: params[name] - shared[name].numpy() for name in ref.BODY}
    ref.assert_same(pick(reply.tensors, ref.BODY), moved)


def test_without_collaboration_nothing_travels_in_letters():
    """The head, h (C x d) and V go up and the head comes down, for each of two clients."""
    costs = []
    for collaborate in (True, False):
        setup = ref.setup(FedPAC(tau=2, collaborate=collaborate))
        shared = setup.method.init_shared(setup.task)
        costs.append(ref.play(setup, shared, {}, ref.store(setup), [0, 1], ref.announced(setup, 2)).cost)
    head, h, V = C * 3 + C, C * 3, 1
    assert costs[0].bytes_up - costs[1].bytes_up == 2 * 8 * (head + h + V)
    assert costs[0].bytes_down - costs[1].bytes_down == 2 * 8 * head


def test_targets_that_are_numbers_are_refused():
    rng = np.random.default_rng(0)
    clients = {"a": (rng.normal(size=(4, 3)), rng.normal(size=4), rng.normal(size=(2, 3)), rng.normal(size=2))}
    with pytest.raises(UserError, match="FedPAC aligns features by class, but the targets are numbers"):
        ref.setup(FedPAC(), coterie.Federation.from_arrays(clients, regression=True))
