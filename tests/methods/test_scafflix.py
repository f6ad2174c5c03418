"""Scafflix: Algorithm 1 by hand in NumPy, its limits, and clients that take part or not."""

import numpy as np
import pytest
import torch

import laboratory as lab
import reference as ref
from coterie.core.tree import shift, within
from coterie.errors import UserError
from coterie.methods import GD, IScaffnew, Scafflix, Scaffnew

ALPHA = {"0": 0.9, "1": 0.01, "2": 0.4}
COHORTS = [[0, 1, 2], [0, 2], [1], [0, 1, 2], [1, 2], [0]]


def test_rounds_by_hand():
    """Clients of a net have unequal weights. The rounds by hand are on x_i and divide by alpha_i, as in the paper."""
    alpha = [0.3, 1.0, 0.05, 0.7]
    given = {f"client-{i}": each for i, each in enumerate(alpha)}
    setup = ref.setup(Scafflix(alpha=given, gamma=0.2, p=0.4, mu=0.1, optimum_rate=0.2, optimum_epochs=6))
    cohorts = [[0, 1, 2, 3], [0, 2], [1, 2, 3], [3]]
    rounds = [(ref.announced(setup, 4, index).steps, cohort) for index, cohort in enumerate(cohorts, 1)]
    f, x = lab.net_gradients(setup, 0.1), lab.vector(setup.task.initial)
    own = [x] * 4
    for i in (0, 2, 3):
        for _ in range(6):
            own[i] = own[i] - 0.2 * f[i](own[i])
    expected = lab.scafflix(f, x, own, alpha, [0.2] * 4, 0.4, rounds)
    *_, (_, shared, store) = lab.play(setup, 4, lambda index: cohorts[index - 1])
    np.testing.assert_allclose(lab.vector(shared), expected.x, rtol=0, atol=1e-13)
    for i in range(4):
        np.testing.assert_allclose(lab.vector(store[i], "h"), expected.h[i], rtol=0, atol=1e-13)
        model = setup.method.personal_params(setup.task, shared, store[i])
        mixed = alpha[i] * expected.x + (1 - alpha[i]) * own[i]
        np.testing.assert_allclose(lab.vector(model), mixed, rtol=0, atol=1e-13)
        assert store[i].keys() == ref.store(setup)[i].keys()


def exact(**options):
    return Scafflix(alpha=ALPHA, optimum_solver="newton", optimum_tolerance=1e-13, **options)


def test_rounds_by_hand_with_individual_step_sizes():
    setup, f = lab.uneven(exact(gamma="1/trace", p=0.4, mu=0.1))
    x, spectra = lab.vector(setup.task.initial, names=lab.LINEAR), [np.linalg.eigvalsh(q.H) for q in f]
    gamma = [1 / (0.1 + (s - 0.1).sum()) for s in spectra]
    rounds = [(ref.announced(setup, 3, index).steps, cohort) for index, cohort in enumerate(COHORTS, 1)]
    gradients, own = [q.gradient for q in f], [q.minimum() for q in f]
    expected = lab.scafflix(gradients, x, own, list(ALPHA.values()), gamma, 0.4, rounds)
    *_, (_, shared, store) = lab.play(setup, 6, lambda index: COHORTS[index - 1])
    np.testing.assert_allclose(lab.vector(shared, names=lab.LINEAR), expected.x, rtol=0, atol=1e-11)
    for i in range(3):
        np.testing.assert_allclose(lab.vector(store[i], "h", lab.LINEAR), expected.h[i], rtol=0, atol=1e-12)


def test_with_alpha_one_it_is_i_scaffnew_to_the_bit_and_searches_no_optimum():
    sides = []
    for method in (Scafflix(alpha=1.0, gamma="1/L", p=0.4, mu=0.1), IScaffnew(gamma="1/L", p=0.4, mu=0.1)):
        setup, _ = lab.least_squares(method)
        *_, (_, shared, store) = lab.play(setup, 6, lambda index: COHORTS[index - 1])
        sides.append((shared, [store[i] for i in range(3)]))
    (shared, mine), (theirs, others) = sides
    assert all(torch.equal(shared[name], value) for name, value in theirs.items())
    for one, other in zip(mine, others, strict=True):
        assert all(torch.equal(one[name], value) for name, value in other.items())
        assert all(torch.equal(within("optimum", one)[name], setup.task.initial[name]) for name in lab.LINEAR)


def test_the_other_limits():
    """With equal step sizes it is Scaffnew; if p = 1 as well, it is GD."""

    def after(method):
        *_, (_, shared, _) = lab.play(ref.setup(method), 5)
        return lab.vector(shared)

    common = {"gamma": 0.2, "mu": 0.1}
    scaffnew = after(Scaffnew(p=0.4, **common))
    np.testing.assert_allclose(after(Scafflix(alpha=1.0, p=0.4, **common)), scaffnew, rtol=0, atol=1e-13)
    np.testing.assert_allclose(after(Scafflix(alpha=1.0, p=1.0, **common)), after(GD(**common)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch_size", [0, 4])
def test_the_control_variates_weighted_by_alpha_always_sum_to_zero(batch_size):
    """The sum is over all clients, whoever takes part, with exact gradients or not."""
    setup, _ = lab.least_squares(exact(gamma="1/L", p=0.3, mu=0.1, batch_size=batch_size))
    for _, _, store in lab.play(setup, 12, lambda index: COHORTS[(index - 1) % 6]):
        h = [lab.vector(store[i], "h", lab.LINEAR) for i in range(3)]
        np.testing.assert_allclose(
            sum(a * own for a, own in zip(ALPHA.values(), h, strict=True)), 0, rtol=0, atol=1e-13
        )
    assert all(np.abs(own).max() > 0.01 for own in h)


def test_alpha_zero_is_the_own_optimum_and_no_communication():
    """Others train as if that client were not there, with an inexact optimum too."""
    shared = []
    for alpha, cohort in ((0.0, [0, 1, 2]), (0.5, [0, 1])):
        given = {"0": 0.9, "1": 0.3, "2": alpha}
        setup, _ = lab.least_squares(Scafflix(alpha=given, gamma=0.1, p=0.4, optimum_epochs=3))
        *_, (_, after, store) = lab.play(setup, 5, lambda _, cohort=cohort: cohort)
        shared.append(lab.vector(after, names=lab.LINEAR))
        if alpha == 0:
            model = setup.method.personal_params(setup.task, after, store[2])
            own = lab.vector(store[2], "optimum", lab.LINEAR)
            np.testing.assert_array_equal(lab.vector(model, names=lab.LINEAR), own)
            assert all(torch.isfinite(value).all() for value in store[2].values())
    np.testing.assert_allclose(*shared, rtol=0, atol=1e-13)


def test_with_alpha_zero_for_everyone_nothing_moves():
    setup, _ = lab.least_squares(Scafflix(alpha=0.0, gamma=0.1, p=0.4, optimum_epochs=3))
    *_, (_, shared, _) = lab.play(setup, 3)
    assert all(torch.equal(shared[name], value) for name, value in setup.task.initial.items())


def test_what_is_sent_and_what_participants_are_scored_with():
    setup, f = lab.least_squares(exact(gamma="1/L", p=0.4))
    shared, rnd = setup.task.shared_model(), ref.announced(setup, 3)
    x, personal = lab.vector(shared, names=lab.LINEAR), ref.store(setup)[2]
    reply = setup.method.local_update(setup.task, shared, personal, setup.data(2, "train", 1), rnd)
    gamma, own, mixed = float(personal[".gamma"]), f[2].minimum(), 0.4 * x + 0.6 * f[2].minimum()
    for _ in range(rnd.steps):
        mixed = mixed - gamma * f[2].gradient(mixed)
    assert reply.tensors.keys() == set(lab.LINEAR)
    assert reply.numbers.keys() == {"inverse_step", "loss"}
    sent = 0.16 / gamma * ((mixed - 0.6 * own) / 0.4 - x)
    np.testing.assert_allclose(lab.vector(reply.tensors, names=lab.LINEAR), sent, rtol=0, atol=1e-12)
    assert float(reply.numbers["inverse_step"]) == pytest.approx(0.16 / gamma)
    seen = setup.method.personal_params(setup.task, shift(shared, reply.tensors), reply.personal)
    np.testing.assert_allclose(lab.vector(seen, names=lab.LINEAR), mixed, rtol=0, atol=1e-13)


def test_a_client_that_missed_the_broadcast_starts_from_the_next_one():
    setup, _ = lab.least_squares(exact(gamma=0.1, p=0.4))
    shared, rnd, data = setup.task.shared_model(), ref.announced(setup, 3), setup.data(0, "train", 1)
    first = setup.method.local_update(setup.task, shared, ref.store(setup)[0], data, rnd)
    again = setup.method.local_update(setup.task, shared, first.personal, data, rnd)
    for one, other in zip(again[:2], first[:2], strict=True):
        ref.assert_same(one, ref.arrays(other), 0)


@pytest.mark.parametrize(("options", "message"), [({"alpha": 1.5}, "less than or equal"), ({"p": 0.0}, "greater than")])
def test_settings_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Scafflix(**options)


def test_theory_is_for_linear_models():
    with pytest.raises(UserError, match="linear models only"):
        ref.setup(Scafflix(p="optimal"))
    with pytest.raises(UserError, match="linear models only"):
        ref.store(ref.setup(Scafflix(gamma="1/L")))[0]


def test_adaptation_goes_on_from_the_mixture_without_control():
    setup, f = lab.least_squares(exact(gamma=0.1, p=0.4))
    *_, (_, shared, store) = lab.play(setup, 2)
    x = lab.vector(setup.method.personal_params(setup.task, shared, store[0]), names=lab.LINEAR)
    for _ in range(4):
        x = x - 0.1 * f[0].gradient(x)
    adapted = setup.method.adapt(setup.task, shared, store[0], setup.data(0, "train", 0), 4)
    model = setup.method.personal_params(setup.task, shared, adapted)
    np.testing.assert_allclose(lab.vector(model, names=lab.LINEAR), x, rtol=0, atol=1e-13)


def test_minibatches_of_everything_are_everything():
    after = []
    for batch_size in (0, 8, 2):
        *_, (_, shared, _) = lab.play(ref.setup(Scafflix(gamma=0.2, p=0.5, optimum_epochs=2, batch_size=batch_size)), 3)
        after.append(lab.vector(shared))
    np.testing.assert_array_equal(after[0], after[1])
    assert not np.allclose(after[0], after[2])
