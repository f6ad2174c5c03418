"""FedEM against its paper: rounds by hand in NumPy, mixtures that stay on the simplex, one component as FedAvg."""

import numpy as np
import pytest
import torch

import reference as ref
from coterie import Federation
from coterie.core.steps import minibatch
from coterie.core.tree import pick, within
from coterie.methods import FedAvg, FedEM
from coterie.models.logreg import LogReg
from coterie.models.module import Own
from coterie.streams import torch_seeded
from engines import Norm

ALL = ref.BODY + ref.HEAD


def parts(tree, M):
    """Return the components as NumPy arrays."""
    own = ref.arrays(tree)
    return [pick(within(f"m{m}", own) if m else own, ALL) for m in range(M)]


def loss_of_each(params, x, y):
    return np.array([ref.loss_and_gradient(params, x[n : n + 1], y[n : n + 1])[0] for n in range(len(y))])


def weighted_gradient(params, x, y, q):
    each = [ref.loss_and_gradient(params, x[n : n + 1], y[n : n + 1])[1] for n in range(len(y))]
    return {name: sum(w * g[name] for w, g in zip(q, each, strict=True)) / len(y) for name in ALL}


def expectation(components, pi, x, y):
    q = pi * np.exp(-np.stack([loss_of_each(params, x, y) for params in components], 1))
    return q / q.sum(1, keepdims=True)


def test_two_rounds_by_hand():
    M, tau, eta = 2, 3, 0.4
    setup = ref.setup(FedEM(components=M, tau=tau, eta=eta))
    shared, store = setup.method.init_shared(setup.task), ref.store(setup)
    w, pi = parts(shared, M), {i: np.full(M, 1 / M) for i in range(4)}
    sizes = setup.federation.sizes()
    for index, cohort in enumerate(([0, 2], [1, 2, 3]), 1):
        ends = {}
        for i in cohort:
            x, y = ref.examples(setup, i)
            q = expectation(w, pi[i], x, y)
            pi[i], ends[i] = q.mean(0), list(w)
            for m in range(M):
                for _ in range(tau):
                    g = weighted_gradient(ends[i][m], x, y, q[:, m])
                    ends[i][m] = ref.step(ends[i][m], g, eta, ALL)
        total = sum(sizes[i] for i in cohort)
        w = [{name: sum(sizes[i] / total * ends[i][m][name] for i in cohort) for name in ALL} for m in range(M)]
        shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index)).shared
        for found, expected in zip(parts(shared, M), w, strict=True):
            for name in ALL:
                np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-12)
        for i in range(4):
            np.testing.assert_allclose(store[i][".pi"].numpy(), pi[i], rtol=0, atol=1e-12)
    assert abs(pi[2][0] - 0.5) > 0.01


def test_minibatches_keep_the_weights_of_their_own_examples():
    """The loss that is sent is the sum over components of the weighted loss at the last gradient."""
    setup = ref.setup(FedEM(components=2, tau=3, eta=0.4, batch_size=3))
    shared, data, (x, y) = setup.method.init_shared(setup.task), setup.data(2, "train", 1), ref.examples(setup, 2)
    start, numbered = parts(shared, 2), data._replace(y=torch.arange(8))
    q, loss = expectation(start, np.full(2, 0.5), x, y), 0.0
    sent = setup.method.local_update(setup.task, shared, ref.store(setup)[2], data, ref.announced(setup, 1))
    for m, found in enumerate(parts(sent.tensors, 2)):
        w = start[m]
        for step in range(3):
            batch = minibatch(numbered, 3, step)
            mine = batch.y[batch.mask].numpy()
            last = float(q[mine, m] @ loss_of_each(w, x[mine], y[mine]) / len(mine))
            w = ref.step(w, weighted_gradient(w, x[mine], y[mine], q[mine, m]), 0.4, ALL)
        loss += last
        for name in ALL:
            np.testing.assert_allclose(found[name], w[name] - start[m][name], rtol=0, atol=1e-12)
    assert float(sent.numbers["loss"]) == pytest.approx(loss, rel=1e-12)


def test_the_exported_model_is_the_heaviest_component():
    setup = ref.setup(FedEM(components=3))
    shared = setup.method.init_shared(setup.task)
    for m in range(3):
        pi = torch.tensor([0.3, 0.3, 0.3], dtype=torch.float64)
        pi[m] += 0.1
        model = setup.method.personal_params(setup.task, shared, {".pi": pi})
        ref.assert_same(pick(model, ALL), parts(shared, 3)[m], 0)


def test_the_client_answers_with_the_mixture_of_probabilities():
    setup = ref.setup(FedEM(components=3))
    shared, x = setup.method.init_shared(setup.task), setup.data(2, "train", 1).x
    pi = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    models = [pick(within(f"m{m}", shared) if m else shared, ALL) for m in range(3)]
    expected = sum(w * setup.task.outputs(model, x).softmax(1) for w, model in zip(pi, models, strict=True))
    answered = setup.method.predict(setup.task, shared, {".pi": pi}, x)
    torch.testing.assert_close(answered.softmax(1), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(answered.exp(), expected, rtol=0, atol=1e-12)


def test_numbers_are_mixed_as_they_are():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 3))
    setup = ref.setup(
        FedEM(components=2), Federation.from_arrays({"a": (x, x @ [1.0, 2, 3], x, x[:, 0])}, regression=True), LogReg()
    )
    shared, pi = setup.method.init_shared(setup.task), torch.tensor([0.25, 0.75], dtype=torch.float64)
    one, two = (
        setup.method.predict(setup.task, shared, {".pi": torch.eye(2).double()[m]}, torch.from_numpy(x)) for m in (0, 1)
    )
    both = setup.method.predict(setup.task, shared, {".pi": pi}, torch.from_numpy(x))
    torch.testing.assert_close(both, 0.25 * one + 0.75 * two)
    assert not torch.allclose(one, two)


@pytest.mark.usefixtures("taped")
@pytest.mark.parametrize("batch_size", [0, 2])
@pytest.mark.parametrize("net", [None, Norm])
def test_one_component_is_fedavg_to_the_bit(net, batch_size):
    after = []
    for method in (
        FedEM(components=1, tau=3, eta=0.2, batch_size=batch_size),
        FedAvg(tau=3, eta=0.2, batch_size=batch_size),
    ):
        with torch_seeded(0):
            own = Own(net=net(), head_name="fc") if net else None
        setup = ref.setup(method, model=own)
        shared, store = method.init_shared(setup.task), ref.store(setup)
        for index in (1, 2):
            played = ref.play(setup, shared, {}, store, [0, 1, 2], ref.announced(setup, 3, index))
            shared = played.shared
        after.append((shared, played.loss))
    ref.assert_same(after[0][0], ref.arrays(after[1][0]), 0)
    assert after[0][1] == pytest.approx(after[1][1], rel=1e-14)


def test_a_new_user_finds_its_mixture_with_the_components_as_they_are():
    """Repeated steps raise the likelihood of the mixture, and its weights stay on the simplex."""
    setup = ref.setup(FedEM(components=3))
    shared = {name: 3 * value for name, value in setup.method.init_shared(setup.task).items()}
    personal, data, likelihoods = ref.store(setup)[2], setup.data(2, "train", 0), []
    x, y = ref.examples(setup, 2)
    losses = np.stack([loss_of_each(params, x, y) for params in parts(shared, 3)], 1)
    for steps in (0, 1, 2, 5, 300):
        adapted = setup.method.adapt(setup.task, shared, personal, data, steps)
        assert adapted.keys() == {".pi"}
        pi = adapted[".pi"].numpy()
        assert pi.sum() == pytest.approx(1, abs=1e-12)
        assert (pi >= 0).all()
        likelihoods.append(float(np.log(np.exp(-losses) @ pi).sum()))
    assert likelihoods == sorted(likelihoods)
    assert likelihoods[1] > likelihoods[0] + 1e-3
    q = np.exp(-losses) * pi
    np.testing.assert_allclose((q / q.sum(1, keepdims=True)).mean(0), pi, atol=1e-4)  # a fixed point


def test_components_differ_at_first_and_have_the_same_numbers():
    setup = ref.setup(FedEM(components=3))
    one, two, three = parts(setup.method.init_shared(setup.task), 3)
    for name in ("body.1.weight", "head.weight"):
        assert not np.array_equal(one[name], two[name])
        assert not np.array_equal(two[name], three[name])
        np.testing.assert_array_equal(np.sort(one[name].ravel()), np.sort(three[name].ravel()))
    ref.assert_same(pick(setup.task.initial, ALL), one, 0)
