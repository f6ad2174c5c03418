"""FedAMP against its paper: rounds by hand in NumPy, and its limits."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie import train
from coterie.core.tree import pick, under, within
from coterie.errors import UserError
from coterie.methods import FedAMP, Local

ALL = ref.BODY + ref.HEAD


def descent(params, x, y, steps, rate, lam, centre):
    for _ in range(steps):
        _, g = ref.loss_and_gradient(params, x, y)
        pulled = {name: g[name] + lam * (params[name] - centre[name]) for name in ALL}
        params = ref.step(params, pulled, rate, ALL)
    return params


def flat(model):
    return np.concatenate([model[name].ravel() for name in ALL])


def clouds(models, alpha, sigma):
    """Return u_i = w_i - alpha Σ_j A'(||w_i - w_j||²) (w_i - w_j): a step along the gradient of the attraction."""
    found = []
    for own in models:
        u = own
        for other in models:
            slope = alpha / sigma * np.exp(-((flat(own) - flat(other)) ** 2).sum() / sigma)
            u = {name: u[name] - slope * (own[name] - other[name]) for name in ALL}
        found.append(u)
    return found


def heuristic_clouds(models, own, sigma):
    """Return u_i = own w_i + (1 - own) times the mean of the others, weighted by e^(sigma cos(w_i, w_j))."""
    vectors = [flat(model) for model in models]
    found = []
    for i, model in enumerate(models):
        raw = {
            j: np.exp(sigma * vectors[i] @ other / np.linalg.norm(vectors[i]) / np.linalg.norm(other))
            for j, other in enumerate(vectors)
            if j != i
        }
        share = {j: (1 - own) * value / sum(raw.values()) for j, value in raw.items()}
        found.append({n: own * model[n] + sum(share[j] * models[j][n] for j in share) for n in ALL})
    return found


def models(setup, store, label=""):
    states = [store[i] for i in range(len(setup.federation.ids))]
    return [ref.arrays(within(label, own) if label else pick(own, ALL)) for own in states]


def play(setup, rounds=1):
    """Play rounds of everyone. Returns the clients."""
    store, everyone = ref.store(setup), list(range(len(setup.federation.ids)))
    for index in range(1, rounds + 1):
        ref.play(setup, {}, {}, store, everyone, ref.announced(setup, len(everyone), index))
    return store


def test_three_rounds_by_hand():
    method = FedAMP(tau=3, eta=0.2, lam=0.06, alpha=0.1, sigma=0.4)
    setup = ref.setup(method)
    w = [ref.arrays(setup.task.initial)] * 4
    u = w
    for rounds in (1, 2, 3):
        w = [descent(w[i], *ref.examples(setup, i), 3, 0.2, 0.06 / 0.1, u[i]) for i in range(4)]
        u = clouds(w, 0.1, 0.4)
        store = play(setup, rounds)
        for i in range(4):
            ref.assert_same(pick(store[i], ALL), w[i])
            ref.assert_same(within("u", store[i]), u[i])
            used = setup.method.personal_params(setup.task, {}, store[i])
            ref.assert_same(pick(used, ALL), w[i])
    weights = [0.25 * np.exp(-((flat(w[0]) - flat(other)) ** 2).sum() / 0.4) for other in w[1:]]
    assert max(weights) > 2 * min(weights), "similar clients weigh more"


@pytest.mark.parametrize("batch_size", [0, 2])
def test_without_attraction_it_is_local_training_to_the_bit(batch_size):
    amp, local = FedAMP(tau=3, eta=0.2, lam=0, batch_size=batch_size), Local(tau=3, beta=0.2, batch_size=batch_size)
    setup = ref.setup(amp)
    alone = [setup.task.initial] * 4
    for index in (1, 2):
        rnd = ref.announced(setup, 4, index)
        alone = [
            local.local_update(setup.task, {}, alone[i], setup.data(i, "train", index), rnd).personal for i in range(4)
        ]
    store = play(setup, 2)
    for i in range(4):
        ref.assert_same(pick(store[i], ALL), ref.arrays(alone[i]), 0)


def test_two_identical_clients_stay_identical_and_have_their_own_model_as_cloud_model():
    setup = ref.setup(FedAMP(tau=3, eta=0.2, alpha=0.7), ref.twins(2))
    store = play(setup, 2)
    one = models(setup, store)[0]
    ref.assert_same(store[0], ref.arrays(store[1]), 0)
    ref.assert_same(within("u", store[0]), one)
    assert not np.array_equal(flat(one), flat(ref.arrays(setup.task.initial)))


def test_for_large_sigma_alone_cloud_models_are_the_clients_own():
    setup = ref.setup(FedAMP(tau=3, eta=0.2, lam=0, sigma=1e15))
    store = play(setup)
    for w, u in zip(models(setup, store), models(setup, store, "u"), strict=True):
        np.testing.assert_allclose(flat(w), flat(u), rtol=0, atol=1e-12)


def test_for_large_sigma_and_alpha_cloud_models_are_the_mean():
    setup = ref.setup(FedAMP(tau=3, eta=0.2, lam=0, sigma=1e15, alpha=1e15 / 4))
    store = play(setup)
    mean = np.mean([flat(w) for w in models(setup, store)], axis=0)
    for w, u in zip(models(setup, store), models(setup, store, "u"), strict=True):
        np.testing.assert_allclose(flat(u), mean, rtol=0, atol=1e-12)
        assert np.abs(flat(w) - mean).max() > 0.01


def test_for_small_sigma_clients_keep_to_themselves():
    setup = ref.setup(FedAMP(tau=3, eta=0.2, lam=0, sigma=1e-6, alpha=1e-7))
    store = play(setup)
    for w, u in zip(models(setup, store), models(setup, store, "u"), strict=True):
        np.testing.assert_array_equal(flat(w), flat(u))


def test_the_server_takes_a_gradient_step_on_the_attraction():
    """u = w - alpha times the gradient of Σ_{i<j} A(||w_i - w_j||²) / 2, whose slope is that of the paper's norms."""
    method, rng = FedAMP(alpha=0.1, sigma=3.0), np.random.default_rng(0)
    w = torch.from_numpy(rng.normal(size=(5, 2, 3))).requires_grad_()
    square = ((w[:, None] - w[None]) ** 2).sum((2, 3))
    attraction = (1 - torch.exp(-square / 3.0)).sum() / 2  # each pair counts once
    (g,) = torch.autograd.grad(attraction, w)
    (u,) = method.exchange({"w": w.detach()}, ref.announced(ref.setup(method), 5)).values()
    torch.testing.assert_close(u, w.detach() - 0.1 * g / 2, rtol=1e-12, atol=1e-12)


def test_weights_that_are_too_large_are_an_error():
    setup = ref.setup(FedAMP(tau=1, eta=1e-6, alpha=0.5, lam=0), ref.twins(4))
    with pytest.raises(UserError, match=r"weights of other clients sum to 1.5 .* 0.333 is always small enough"):
        play(setup)
    play(ref.setup(FedAMP(tau=1, eta=1e-6, alpha=0.333, lam=0), ref.twins(4)))


def test_a_pull_that_overshoots_is_an_error():
    with pytest.raises(UserError, match=r"method.eta \* lam / alpha = 2 must be less than 2"):
        ref.announced(ref.setup(FedAMP(eta=0.2, lam=1.0, alpha=0.1)), 4)


def test_a_new_user_starts_as_all_clients_do_in_the_first_round():
    setup = ref.setup(FedAMP(tau=3, eta=0.2, lam=0.06, alpha=0.1))
    data, first = setup.data(0, "train", 0), setup.task.initial
    adapted = setup.method.adapt(setup.task, {}, ref.store(setup)[0], data, 3)
    expected = descent(ref.arrays(first), *ref.examples(setup, 0), 3, 0.2, 0.6, ref.arrays(first))
    ref.assert_same(adapted, {**expected, **ref.arrays(under("u", first))})


def test_a_client_that_does_not_answer_keeps_its_cloud_model():
    setup = ref.setup(FedAMP(tau=3, eta=0.2))
    store = play(setup)
    before = store[1]
    ref.play(setup, {}, {}, store, [0, 2, 3], ref.announced(setup, 4, 2))
    ref.assert_same(store[1], ref.arrays(before), 0)
    w = models(setup, store)
    u = clouds([w[0], w[2], w[3]], 0.02, 1.0)
    for i, expected in zip((0, 2, 3), u, strict=True):
        ref.assert_same(within("u", store[i]), expected)


def test_three_rounds_of_heurfedamp_by_hand():
    method = FedAMP(tau=3, eta=0.2, lam=0.06, alpha=0.1, attention="cosine", sigma=20.0, own=0.3)
    setup = ref.setup(method)
    w = [ref.arrays(setup.task.initial)] * 4
    u = w
    for rounds in (1, 2, 3):
        w = [descent(w[i], *ref.examples(setup, i), 3, 0.2, 0.06 / 0.1, u[i]) for i in range(4)]
        u = heuristic_clouds(w, 0.3, 20.0)
        store = play(setup, rounds)
        for i in range(4):
            ref.assert_same(pick(store[i], ALL), w[i])
            ref.assert_same(within("u", store[i]), u[i])
    equal = heuristic_clouds(w, 0.3, 1e-9)
    assert np.abs(flat(u[0]) - flat(equal[0])).max() > 0.01, "similar clients weigh more"


def heuristic(**options):
    """Return (w_i, u_i) of all clients as vectors after a round of HeurFedAMP."""
    setup = ref.setup(FedAMP(tau=3, eta=0.2, lam=0, attention="cosine", **options))
    store = play(setup)
    return tuple(np.stack([flat(each) for each in models(setup, store, label)]) for label in ("", "u"))


def test_heurfedamp_with_all_weight_on_the_own_model_keeps_it_to_the_bit():
    w, u = heuristic(own=1.0)
    np.testing.assert_array_equal(u, w)


def test_heurfedamp_for_small_sigma_and_equal_own_weight_is_the_mean():
    w, u = heuristic(own=1 / 4, sigma=1e-15)
    np.testing.assert_allclose(u, np.broadcast_to(w.mean(0), u.shape), rtol=0, atol=1e-12)
    assert np.abs(w - w.mean(0)).max() > 0.01


def test_heurfedamp_for_large_sigma_is_the_most_similar_other():
    w, u = heuristic(own=0.0, sigma=1e12)
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    nearest = (unit @ unit.T - 2 * np.eye(4)).argmax(1)
    np.testing.assert_allclose(u, w[nearest], rtol=0, atol=1e-12)


def test_two_clients_of_heurfedamp_without_own_weight_swap_their_models():
    letters = {"w": torch.tensor([[1.0, 2.0], [0.0, 0.0]]), "b": torch.tensor([3.0, 0.0])}  # one of them is zero
    method = FedAMP(attention="cosine", own=0.0)
    swapped = method.exchange(letters, ref.announced(ref.setup(method), 2))
    for name, value in letters.items():
        torch.testing.assert_close(swapped[name], value.flip(0), rtol=0, atol=0)


def test_a_client_of_heurfedamp_that_is_alone_has_its_own_model():
    letters, method = {"w": torch.tensor([[1.0, 2.0]])}, FedAMP(attention="cosine", own=0.2)
    found = method.exchange(letters, ref.announced(ref.setup(method), 1))
    torch.testing.assert_close(found["w"], letters["w"], rtol=0, atol=0)


def test_the_weights_of_heurfedamp_do_not_depend_on_the_lengths_of_models():
    method, rng = FedAMP(attention="cosine", sigma=5.0), np.random.default_rng(0)
    w = torch.from_numpy(rng.normal(size=(4, 6)))
    one, other = method._by_cosine({"w": w}), method._by_cosine({"w": 7.0 * w})
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    torch.testing.assert_close(one.diagonal(), torch.full((4,), 0.5, dtype=torch.float64), rtol=1e-12, atol=0)


def test_every_client_has_to_take_part():

    with pytest.raises(UserError, match="fedamp needs every client in every round"):
        train(ref.federation(), method="fedamp", rounds=1, clients_per_round=2)
