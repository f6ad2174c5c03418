"""FedCR against its paper: rounds by hand in NumPy with the noise that torch draws, and FedPer as its limit."""

import numpy as np
import pytest
import torch

import gaussian as gauss
import reference as ref
from coterie.core.counting import CountFlops
from coterie.core.gaussian import Normal
from coterie.core.tree import num_bytes, pick
from coterie.measure.cost import local_work
from coterie.methods import FedCR, FedPer
from coterie.settings import Epochs
from coterie.streams import torch_seeded

TABLES = (".mean", ".deviation")


def gradient(params, m, s, x, y, eps, beta):
    """The gradient of the objective from its formula, with mu and sigma. eps is (L, N, d)."""
    mu, sigma, raw = gauss.encode(params, x)
    N, L = len(y), len(eps)
    loss, g_mu, g_sigma, g = 0.0, 0.0, 0.0, dict.fromkeys(gauss.HEAD, 0.0)
    for draw in eps:
        each, g_z, g_head = gauss.classify(params, mu + sigma * draw, y)
        loss, g_mu, g_sigma = loss + each / L, g_mu + g_z / L, g_sigma + g_z * draw / L
        g = {name: g[name] + g_head[name] / L for name in gauss.HEAD}
    away, k = mu - m[y], beta / N
    g_mu = g_mu + k * away / sigma**2
    g_sigma = g_sigma + k * (1 / sigma - (s[y] ** 2 + away**2) / sigma**3)
    divergence = np.log(sigma / s[y]) + (s[y] ** 2 + away**2) / (2 * sigma**2) - 0.5
    loss += beta * divergence.sum(1).mean()
    return float(loss), g | gauss.through_body(x, raw, g_mu, g_sigma), mu, sigma


def visit(params, m, s, data, steps, batch, rate, beta, samples, clip=0.0, over=gauss.BODY + gauss.HEAD, seed=None):
    """Take local steps. Returns (params, last objective, Λ, S), the sums over the last epoch."""
    parts = gauss.batches(data, batch, steps)
    seed = int(data.stream) if seed is None else seed
    draws = gauss.noise(seed, [(samples * len(y), gauss.LATENT) for _, y in parts])
    precision, weighted = np.zeros((5, gauss.LATENT)), np.zeros((5, gauss.LATENT))
    epoch = -(-len(data.y) // batch) if batch else 1
    for step, ((x, y), eps) in enumerate(zip(parts, draws, strict=True)):
        loss, g, mu, sigma = gradient(params, m, s, x, y, eps.reshape(samples, len(y), -1), beta)
        if step >= steps - epoch:
            for n, label in enumerate(y):
                precision[label] += 1 / sigma[n] ** 2
                weighted[label] += mu[n] / sigma[n] ** 2
        params = gauss.moved(params, gauss.limited({name: g[name] for name in over}, clip), rate)
    return params, loss, precision, weighted


@pytest.mark.parametrize(
    ("batch", "steps", "tau", "clip"), [(0, 3, 3, 0.0), (3, None, "2 epochs", 0.4), (3, 4, 4, 0.0)]
)
@pytest.mark.parametrize("b2", [1.0, 0.3])
def test_three_rounds_by_hand(batch, steps, tau, clip, b2):
    """Clients have 3, 2, 3 and 1 classes, so some classes are sent by several clients and others by nobody."""
    method = FedCR(tau=tau, eta=0.1, beta=0.05, b2=b2, samples=2, batch_size=batch, clip=clip)
    setup = gauss.setup(method)
    shared, store = method.init_shared(setup.task), ref.store(setup)
    m, s, heads = np.zeros((5, 3)), np.ones((5, 3)), {i: ref.arrays(store[i]) for i in range(4)}
    theta = ref.arrays(pick(shared, gauss.BODY))
    for index, cohort in enumerate(([0, 1], [1], [0, 2, 3]), start=1):
        arrived, precision, weighted, losses = [], 0.0, 0.0, []
        for i in cohort:
            data = setup.data(i, "train", index)
            taken = steps or 2 * -(-len(data.y) // batch)
            after, loss, one, other = visit({**theta, **heads[i]}, m, s, data, taken, batch, 0.1, 0.05, 2, clip)
            arrived.append(after)
            heads[i] = {name: after[name] for name in gauss.HEAD}
            precision, weighted = precision + one, weighted + other
            losses.append(loss)
        theta = {name: np.mean([after[name] for after in arrived], axis=0) for name in gauss.BODY}
        new = weighted / (1 + precision), 1 / np.sqrt(1 + precision)
        seen = precision > 0
        assert seen.all(axis=1).sum() == seen.any(axis=1).sum() == {1: 3, 2: 2, 3: 5}[index]
        m, s = (np.where(seen, (1 - b2) * old + b2 * value, old) for old, value in zip((m, s), new, strict=True))
        played = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index))
        shared = played.shared
        ref.assert_same(shared, {**theta, ".mean": m, ".deviation": s})
        assert played.loss == pytest.approx(np.mean(losses), rel=1e-12)
        for i in range(4):
            ref.assert_same(store[i], heads[i])


def test_what_travels():
    setup = gauss.setup(FedCR(tau=2))
    shared, data = setup.method.init_shared(setup.task), setup.data(2, "train", 1)
    reply = setup.method.local_update(setup.task, shared, ref.store(setup)[2], data, ref.announced(setup, 1))
    assert reply.tensors.keys() == {*gauss.BODY, *TABLES}
    assert reply.personal.keys() == set(gauss.HEAD)
    absent = [label for label in range(5) if label not in data.y]
    assert absent
    assert not any(reply.tensors[name][absent].any() for name in TABLES)
    assert num_bytes(pick(shared, TABLES)) == 2 * 5 * gauss.LATENT * 8


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("net", ["gaussian", "mlp"])
def test_without_the_divergence_it_is_fedper_on_the_noisy_net(net, batch):
    """With clients of equal size and one draw."""
    options, results = {"tau": "2 epochs", "batch_size": batch}, []
    for method in (FedCR(**options, eta=0.2, beta=0.0, samples=1), FedPer(**options, beta=0.2)):
        clients = ref.federation((7, 7, 7))
        own = gauss.model(labels="global") if net == "gaussian" else ref.MLP(hidden=[3], labels="global")
        setup = ref.setup(method, clients, own)
        shared, store = method.init_shared(setup.task), ref.store(setup)
        for index, cohort in enumerate(([0, 1, 2], [2, 1]), start=1):
            shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index)).shared
        results.append(({name: shared[name] for name in setup.task.body}, store[1], store[2]))
    for mine, plain in zip(*results, strict=True):
        ref.assert_same(mine, ref.arrays(plain))


def test_a_product_that_is_never_mixed_in_leaves_the_prior():
    setup = gauss.setup(FedCR(tau=2, b2=0.0, beta=0.1))
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    for index in (1, 2):
        shared = ref.play(setup, shared, {}, store, [0, 2], ref.announced(setup, 2, index)).shared
        assert not shared[".mean"].any()
        assert bool((shared[".deviation"] == 1).all())


def test_adaptation_is_of_the_head_alone():
    setup = gauss.setup(FedCR(eta=0.2, beta=0.1, samples=2, batch_size=3))
    shared, own, data = setup.method.init_shared(setup.task), ref.store(setup)[2], setup.data(2, "train", 0)
    m, s = (shared[name].numpy() for name in TABLES)
    start = ref.arrays({**pick(shared, gauss.BODY), **own})
    expected, *_ = visit(start, m, s, data, 6, 3, 0.2, 0.1, 2, over=gauss.HEAD, seed=7)
    with torch_seeded(7):
        adapted = setup.method.adapt(setup.task, shared, own, data, Epochs(2))
    ref.assert_same(adapted, {name: expected[name] for name in gauss.HEAD})


def test_the_cost_of_several_draws_is_counted():
    flops = {}
    for samples in (1, 4, 7):
        setup = gauss.setup(FedCR(tau=3, samples=samples))
        shared, rnd = setup.method.init_shared(setup.task), ref.announced(setup, 1)
        with CountFlops() as counted:
            setup.method.local_update(setup.task, shared, ref.store(setup)[0], setup.data(0, "train", 1), rnd)
        assert local_work(setup.method, setup.load.work.probe, [(5, 5)], rnd).flops == counted.total
        assert (setup.method.passes(5, rnd) is None) == (samples > 1)
        flops[samples] = counted.total
    assert flops[7] - flops[4] == flops[4] - flops[1] > 0


@pytest.mark.parametrize("order", [0, 1])
def test_the_common_distribution_comes_first_because_it_is_narrow(order):
    """The other order would grow without bound as the common distribution of many examples becomes narrow."""
    wide, narrow = (Normal(*map(torch.tensor, pair)) for pair in ((0.5, 1.0), (0.0, 1e-4)))
    value = float(narrow.divergence(wide) if order == 0 else wide.divergence(narrow))
    assert value < 10 if order == 0 else value > 1e6
