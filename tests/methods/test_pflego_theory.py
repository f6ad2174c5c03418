# ruff: noqa: E741 - I is the paper's number of clients
"""What PFLEGO's convergence theory promises about the number of clients, and what it does not.

The journal version (arXiv:2202.09848, Appendix B) sets ρ = √r / (L √(T I)) and needs ρ < (2/L)(r/I). It derives that at
least floor(I / (4T)) + 1 clients must take part in each round.

- This is right, as arithmetic: the condition holds exactly for these r. For T > I/4 it asks for one client only.
- It does not follow that "the loss function will decrease". The bound makes each client's own step lower its own loss.
  A cohort of some clients can still raise objective (1), however small ρ is.

The conference version (ALA 2023, Proposition 2) sets ρ = √r / (L √T) and claims a "linear speedup" in the number of
clients I, with the rate O(√(I / T)).

- The bound is right, but it grows with I: four times as many clients need four times as many rounds. That is the
  opposite of a speedup.
- If all clients take part, T must exceed I/4, or ρ is above 2/L and plain gradient descent diverges.
- Copies of the same clients change nothing, if all take part: neither a speedup nor a loss.
- What does fall linearly is the variance of the gradient, with the number r of clients in a cohort of fixed size. If
  each client takes part independently, it does not vanish for equal clients, as it does with fixed cohorts.
"""

from fractions import Fraction
from itertools import combinations
from math import sqrt

import numpy as np
import pytest
import torch
from torch import nn

import reference as ref
from coterie import Federation
from coterie.core.tree import displacement
from coterie.methods import PFLEGO
from coterie.models.module import Own

# -- Appendix B: the smallest number of participants


@pytest.mark.parametrize("T", [1, 2, 3, 10, 25, 50])
def test_the_rate_is_below_its_bound_exactly_from_that_number_of_participants_on(T):
    for I in range(1, 121):
        least = I // (4 * T) + 1
        for r in range(1, I + 1):
            rate_squared, bound_squared = Fraction(r, T * I), (2 * Fraction(r, I)) ** 2  # times L, which cancels
            assert (rate_squared < bound_squared) == (r >= least)


def test_the_experiments_of_the_paper_need_one_participant_only():
    for I, T in ((100, 200), (50, 1000), (50, 5000)):
        assert I // (4 * T) + 1 == 1


def pulled(targets, rho):
    """Return a setup with one weight θ, a frozen head, and f_i(θ) = (θ - c_i)² for the targets c_i, so that L = 2."""
    x = np.ones((4, 1))
    clients = {str(i): (x, np.full(4, c), x[:1], np.full(1, c)) for i, c in enumerate(targets)}
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        net[0].weight.fill_(0.0)
        net[1].weight.fill_(1.0)
    net[1].requires_grad_(False)
    method = PFLEGO(tau=1, server="sgd", rho=rho)
    return ref.setup(method, Federation.from_arrays(clients, regression=True), model=Own(net=net, head_name="1"))


def theta_after(setup, cohort, rounds):
    shared, store = setup.task.shared_body(), ref.store(setup)
    for index in range(1, rounds + 1):
        shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, len(cohort), index)).shared
    return float(shared["0.weight"])


@pytest.mark.parametrize("rho", [1e-4, 0.1, 0.49])
def test_a_round_can_raise_the_objective_although_the_rate_is_below_its_bound(rho):
    """Two clients with c = -1 and 1: objective (1) is lowest at θ = 0, and any cohort of one client moves θ away."""
    I, r, L = 2, 1, 2.0
    assert rho < 2 / L * r / I
    setup = pulled([-1.0, 1.0], rho)
    theta = theta_after(setup, [1], 1)
    assert theta == pytest.approx(2 * rho)  # ρ (I/r) α_i 2 (c_i - θ)
    assert (theta - 1) ** 2 < 1  # the loss of the client falls
    assert ((theta + 1) ** 2 + (theta - 1) ** 2) / 2 > 1  # and objective (1) rises


# -- Proposition 2 of the conference version: linear speedup


def bound(I, r, T, L=1.0, G=1.0, gap=1.0):
    """Return the right side of its proof for clients of equal size, at ρ = √r / (L √T)."""
    rho, alpha = sqrt(r) / (L * sqrt(T)), 1 / I
    spread = (I * I * alpha**2 + r * I * (I - 1) * alpha**2) / r
    return gap / (rho * T) + L * rho * G**2 / 2 * spread


def test_the_bound_of_the_linear_speedup_grows_with_the_number_of_clients():
    bounds = {I: bound(I, I, 1000) for I in (4, 16, 64, 256)}
    assert list(bounds.values()) == sorted(bounds.values())
    assert bounds[256] / bounds[64] == pytest.approx(2, rel=0.05)  # O(sqrt(I / T)), as the proposition says
    for I in (64, 256):
        assert bound(4 * I, 4 * I, 4000) == pytest.approx(bound(I, I, 1000), rel=0.05)  # four times the rounds
    first_term = [1 / (sqrt(I) * sqrt(1000)) for I in (4, 16)]
    assert first_term[0] / first_term[1] == pytest.approx(2)  # only this term has the speedup


@pytest.mark.parametrize(("I", "T"), [(3, 1), (4, 2), (9, 2), (9, 1)])
def test_at_the_printed_rate_full_participation_diverges_unless_T_exceeds_a_quarter_of_I(I, T):
    """Each round multiplies the distance to the minimum by 1 - ρ L = 1 - √(I/T)."""
    rho = sqrt(I) / (2 * sqrt(T))
    distance = abs(1 - theta_after(pulled([1.0] * I, rho), list(range(I)), rounds=20))
    assert distance == pytest.approx(abs(1 - sqrt(I / T)) ** 20, rel=1e-6)
    assert (distance > 1) == (T < I / 4)


def copies(times):
    base = ref.federation(sizes=(5, 3, 8))
    clients = {}
    for k in range(times):
        for i in range(3):
            train, test = (base.data(i, split, "local") for split in ("train", "test"))
            labels = np.array(base.labels)[base.classes.row(i)]
            clients[f"{i}-{k}"] = (train.x.numpy(), labels[train.y.numpy()], test.x.numpy(), labels[test.y.numpy()])
    return Federation.from_arrays(clients)


def test_copies_of_clients_that_all_take_part_change_nothing():
    """Full participation is gradient descent on objective (1), and copies do not change the objective."""
    after = []
    for times in (1, 2, 4):
        setup = ref.setup(PFLEGO(tau=3, beta=0.2, rho=0.1, server="sgd"), copies(times))
        store, everyone = ref.store(setup), list(range(3 * times))
        for i in everyone:
            store[i] = ref.store(setup)[i % 3]
        shared = setup.task.shared_body()
        for index in (1, 2, 3):
            shared = ref.play(setup, shared, {}, store, everyone, ref.announced(setup, 3 * times, index)).shared
        after.append(ref.arrays(shared))
    for other in after[1:]:
        ref.assert_same({name: torch.from_numpy(value) for name, value in other.items()}, after[0], 1e-12)


def flat(tree):
    return np.concatenate([np.asarray(value).ravel() for value in tree.values()])


def noise(setup, store, draws):
    """Return the variance of PFLEGO's gradient over the body, over all cohorts: (probability, cohort, r)."""
    shared, rho, mean, second = setup.task.shared_body(), setup.method.rho, 0.0, 0.0
    for probability, cohort, r in draws:
        kept = ref.store(setup)
        for i in range(len(setup.federation.ids)):
            kept[i] = store[i]
        after = ref.play(setup, shared, {}, kept, list(cohort), ref.announced(setup, r)).shared
        g = -flat(displacement(after, shared)) / rho
        mean, second = mean + probability * g, second + probability * (g**2).sum()
    return second - (mean**2).sum()


def client_gradients(setup, store):
    theta = ref.arrays(setup.task.shared_body())
    found = [ref.loss_and_gradient({**theta, **ref.arrays(store[i])}, *ref.examples(setup, i))[1] for i in range(4)]
    return np.array([flat({name: g[name] for name in theta}) for g in found])


def equal_sizes():
    setup = ref.setup(PFLEGO(tau=1, rho=0.5, server="sgd"), ref.federation(sizes=(6, 6, 6, 6)))
    return setup, ref.store(setup)


def test_the_noise_of_a_fixed_cohort_falls_as_one_over_its_size():
    """The variance is (σ²/r) (I - r)/(I - 1), where σ² is that of the clients' gradients. It is 0 for r = I."""
    setup, store = equal_sizes()
    g = client_gradients(setup, store)
    sigma2 = ((g - g.mean(0)) ** 2).sum(1).mean()
    assert sigma2 > 1e-3
    for r in (1, 2, 3, 4):
        subsets = list(combinations(range(4), r))
        found = noise(setup, store, [(1 / len(subsets), subset, r) for subset in subsets])
        assert found == pytest.approx(sigma2 / r * (4 - r) / 3, abs=1e-12)


def independently(pi):
    """Return all cohorts of four clients that take part with probability pi each."""
    return [
        (pi ** len(cohort) * (1 - pi) ** (4 - len(cohort)), cohort, 4 * pi)
        for r in range(5)
        for cohort in combinations(range(4), r)
    ]


def test_the_noise_of_independent_participation():
    """The variance is Σ α_i² ‖g_i‖² (1 - π)/π: it has the gradients themselves, not their differences."""
    setup, store = equal_sizes()
    g = client_gradients(setup, store)
    for pi in (0.3, 0.5):
        assert noise(setup, store, independently(pi)) == pytest.approx((g**2).sum() / 16 * (1 - pi) / pi, abs=1e-12)


def test_only_fixed_cohorts_of_equal_clients_are_free_of_noise():
    rng = np.random.default_rng(1)
    one = (rng.normal(size=(6, 4)), np.arange(6) % 3, rng.normal(size=(2, 4)), np.arange(2))
    setup = ref.setup(PFLEGO(tau=1, rho=0.5, server="sgd"), Federation.from_arrays(dict.fromkeys("abcd", one)))
    store = ref.store(setup)
    for i in range(4):
        store[i] = ref.store(setup)[0]
    pairs = list(combinations(range(4), 2))
    assert noise(setup, store, [(1 / 6, pair, 2) for pair in pairs]) == pytest.approx(0, abs=1e-12)
    assert noise(setup, store, independently(0.5)) > 1e-3
