"""FedSR against its paper: rounds by hand in NumPy with the noise that torch draws, and FedAvg as its limit."""

import numpy as np
import pytest
import torch

import gaussian as gauss
import reference as ref
from coterie.core.gaussian import Normal
from coterie.core.tree import shift
from coterie.methods import FedAvg, FedSR
from coterie.streams import torch_seeded

OWN = (".reference", ".raw", ".scale")


def gradient(params, x, y, eps, l2r, cmi):
    """The gradient of the whole objective, from its formula."""
    mu, sigma, raw = gauss.encode(params, x)
    z, N = mu + sigma * eps, len(y)
    loss, g_z, g = gauss.classify(params, z, y)
    length = np.linalg.norm(z, axis=1, keepdims=True)
    g_z = g_z + l2r / N * z / length
    r, rho, c = params[".reference"][y], params[".raw"][y], params[".scale"]
    s, k = gauss.softplus(rho), cmi / N
    away = c * mu - r
    divergence = np.log(s / (c * sigma)) + ((c * sigma) ** 2 + away**2) / (2 * s**2) - 0.5
    g_mu = g_z + k * c * away / s**2
    g_sigma = g_z * eps + k * (c**2 * sigma / s**2 - 1 / sigma)
    g |= gauss.through_body(x, raw, g_mu, g_sigma)
    g |= {name: np.zeros_like(params[name]) for name in (".reference", ".raw")}
    np.add.at(g[".reference"], y, -k * away / s**2)
    np.add.at(g[".raw"], y, k * (1 / s - ((c * sigma) ** 2 + away**2) / s**3) * gauss.sigmoid(rho))
    g[".scale"] = k * (-1 / c + c * sigma**2 / s**2 + away * mu / s**2).sum()
    return float(loss + l2r * length.mean() + cmi * divergence.sum(1).mean()), g


def descent(params, data, steps, batch, rate, l2r, cmi, clip, seed):
    """Take local steps. Returns (params, objective at the last of them)."""
    parts = gauss.batches(data, batch, steps)
    for (x, y), eps in zip(parts, gauss.noise(seed, [(len(y), gauss.LATENT) for _, y in parts]), strict=True):
        loss, g = gradient(params, x, y, eps, l2r, cmi)
        params = gauss.moved(params, gauss.limited(g, clip), rate)
    return params, loss


@pytest.mark.parametrize(("batch", "clip"), [(0, 0.0), (3, 0.0), (3, 0.5)])
def test_two_rounds_by_hand(batch, clip):
    """Large weights, so that every term counts. Client 2 takes part twice and keeps its references."""
    method = FedSR(tau=4, eta=0.2, l2r=0.3, cmi=0.4, batch_size=batch, clip=clip)
    setup = gauss.setup(method)
    shared, store = method.init_shared(setup.task), ref.store(setup)
    w, own = ref.arrays(shared), {i: ref.arrays(store[i]) for i in range(4)}
    assert own[0][".raw"].tolist() == np.ones((5, 3)).tolist()
    for index, cohort in enumerate(([0, 1, 2], [2, 3]), start=1):
        arrived, rnd, losses = {}, ref.announced(setup, len(cohort), index), []
        for i in cohort:
            data = setup.data(i, "train", index)
            params, loss = descent({**w, **own[i]}, data, 4, batch, 0.2, 0.3, 0.4, clip, int(data.stream))
            arrived[i], own[i] = {name: params[name] for name in w}, {name: params[name] for name in OWN}
            losses.append(loss)
        w = {name: np.mean([arrived[i][name] for i in cohort], axis=0) for name in w}
        played = ref.play(setup, shared, {}, store, cohort, rnd)
        shared = played.shared
        ref.assert_same(shared, w)
        assert played.loss == pytest.approx(np.mean(losses), rel=1e-12)
        for i in range(4):
            ref.assert_same(store[i], own[i])


def test_the_divergence_is_that_of_normal_distributions():
    one, other = (torch.distributions.Normal(*pair) for pair in ((0.3, 0.5), (-1.0, 2.0)))
    mine = [Normal(each.loc, each.scale) for each in (one, other)]
    for place in (0, 1):
        expected = torch.distributions.kl_divergence(*(one, other) if place == 0 else (other, one))
        torch.testing.assert_close(mine[place].divergence(mine[1 - place]), expected)
    assert float(mine[0].divergence(mine[0])) == 0


def test_references_never_travel():
    setup = gauss.setup(FedSR(tau=2))
    data, store = setup.data(2, "train", 1), ref.store(setup)
    shared = setup.method.init_shared(setup.task)
    reply = setup.method.local_update(setup.task, shared, store[2], data, ref.announced(setup, 1))
    assert reply.tensors.keys() == set(gauss.BODY + gauss.HEAD)
    assert reply.personal.keys() == set(OWN)
    own, absent = torch.unique(data.y), [0, 1]
    assert reply.personal[".reference"][own].abs().min() > 0
    assert not reply.personal[".reference"][absent].any(), "classes that the client does not have stay"


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("net", ["gaussian", "mlp"])
def test_without_regularizers_it_is_fedavg_on_the_noisy_net(net, batch):
    """Both draw the same numbers, one after another."""
    options, results = {"tau": 3, "eta": 0.2, "users": "equal", "batch_size": batch}, []
    for method in (FedSR(**options, l2r=0.0, cmi=0.0), FedAvg(**options)):
        setup = gauss.setup(method) if net == "gaussian" else ref.setup(method)
        shared, store = method.init_shared(setup.task), ref.store(setup)
        for index, cohort in enumerate(([0, 1, 2], [2, 3]), start=1):
            shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index)).shared
        results.append((shared, store[2]))
    (mine, own), (plain, _) = results
    ref.assert_same(mine, ref.arrays(plain))
    assert not own[".reference"].any()
    assert bool((own[".scale"] == 1).all() and (own[".raw"] == 1).all())


def test_adaptation_trains_the_last_layer_of_the_body_and_the_head():
    """On a net with two layers before the draw. The objective is the same, so references move too."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), *gauss.model().net)
    net[2] = torch.nn.Linear(6, 6)
    setup = ref.setup(FedSR(eta=0.2), model=gauss.Own(net=net, head_name="3"))
    shared, own, data = setup.method.init_shared(setup.task), ref.store(setup)[0], setup.data(0, "train", 0)
    adapted = setup.method.adapt(setup.task, shared, own, data, 5)
    changed = {name for name, value in {**shared, **own}.items() if not torch.equal(value, adapted[name])}
    assert changed == {"2.weight", "2.bias", "3.1.weight", "3.1.bias", *OWN}


def test_adaptation_by_hand():
    setup = gauss.setup(FedSR(eta=0.2, l2r=0.3, cmi=0.4))
    shared, own, data = setup.method.init_shared(setup.task), ref.store(setup)[2], setup.data(2, "train", 0)
    expected, _ = descent(ref.arrays({**shared, **own}), data, 3, 0, 0.2, 0.3, 0.4, 0, 7)
    with torch_seeded(7):
        adapted = setup.method.adapt(setup.task, shared, own, data, 3)
    ref.assert_same(adapted, expected)


def test_the_model_is_used_at_its_mean():
    setup = gauss.setup(FedSR())
    shared, own, data = setup.method.init_shared(setup.task), ref.store(setup)[2], setup.data(2, "test", 0)
    outputs = [setup.method.predict(setup.task, shared, own, data.x) for _ in range(2)]
    assert torch.equal(*outputs)
    mu, _, _ = gauss.encode(ref.arrays(shared), data.x.numpy())
    expected = mu @ shared["1.1.weight"].numpy().T + shared["1.1.bias"].numpy()
    np.testing.assert_allclose(outputs[0].numpy(), expected, atol=1e-12)
    assert shift(shared, {}).keys() == shared.keys()
