"""L2GD: its iterations by hand in NumPy, its limits, and the solution of its objective for quadratic problems."""

import numpy as np
import pytest

import laboratory as lab
import reference as ref
from coterie.core.round import Round
from coterie.core.steps.control import steps_to_coin
from coterie.errors import UserError
from coterie.methods import L2GD, FedAvg

COHORTS = [[0, 2], [1, 2, 3], [3], [0, 1]]


def pulls(method, rnd):
    return steps_to_coin(1 - method.p, rnd, "pulls")


def test_iterations_by_hand():
    """Each iteration is a step of all clients on f_i, or of all towards the mean, as in the paper, with its n."""
    setup = ref.setup(L2GD(eta=0.05, lam=2.0, p=0.4, mu=0.1))
    f, n, alpha, p, lam = lab.net_gradients(setup, 0.1), 4, 4 * 0.05, 0.4, 2.0
    x = [lab.vector(setup.task.initial)] * 4
    many = 0
    for rnd, shared, store in lab.play(setup, 6):
        for _ in range(rnd.steps):
            x = [own - alpha / (n * (1 - p)) * g(own) for own, g in zip(x, f, strict=True)]
        for _ in range(pulls(setup.method, rnd)):
            mean = sum(x) / n
            x = [own - alpha * lam / (n * p) * (own - mean) for own in x]
        many = max(many, pulls(setup.method, rnd))
        np.testing.assert_allclose(lab.vector(shared), sum(x) / n, rtol=0, atol=1e-13)
        for i in range(4):
            model = setup.method.personal_params(setup.task, shared, store[i])
            np.testing.assert_allclose(lab.vector(model), x[i], rtol=0, atol=1e-13)
    assert many > 1
    assert np.abs(x[0] - x[1]).max() > 1e-3


def test_rounds_of_cohorts_by_hand():
    """The mean is that of the cohort, and a client starts from the shared model when it is first drawn."""
    setup = ref.setup(L2GD(eta=0.05, lam=2.0, p=0.4))
    f, mean, x = lab.net_gradients(setup), lab.vector(setup.task.initial), {}
    for rnd, shared, store in lab.play(setup, 4, lambda index: COHORTS[index - 1]):
        cohort = COHORTS[rnd.index - 1]
        for i in cohort:
            x.setdefault(i, mean)
            for _ in range(rnd.steps):
                x[i] = x[i] - 0.05 / 0.6 * f[i](x[i])
        mean = sum(x[i] for i in cohort) / len(cohort)
        for i in cohort:
            for _ in range(pulls(setup.method, rnd)):
                x[i] = x[i] - 0.05 * 2 / 0.4 * (x[i] - mean)
        np.testing.assert_allclose(lab.vector(shared), mean, rtol=0, atol=1e-13)
        for i in range(4):
            model = setup.method.personal_params(setup.task, shared, store[i])
            np.testing.assert_allclose(lab.vector(model), x.get(i, mean), rtol=0, atol=1e-13)


def test_coins_between_two_communications():
    """Tails and heads alternate in runs, so heads come with probability p, and p (1 - p) of the coins communicate."""
    method, tails, heads = L2GD(p=0.3), [], []
    for index in range(1, 4001):
        rnd = method.plan(Round(index, 4, 40, 4, 0))
        tails.append(rnd.steps)
        heads.append(pulls(method, rnd))
    assert min(tails) == min(heads) == 1
    total = sum(tails) + sum(heads)
    assert sum(heads) / total == pytest.approx(0.3, abs=0.02)
    assert 4000 / total == pytest.approx(0.3 * 0.7, abs=0.01)
    assert np.corrcoef(tails, heads)[0, 1] == pytest.approx(0, abs=0.05)


def test_without_a_pull_each_client_trains_alone():
    setup = ref.setup(L2GD(eta=0.1, lam=0.0, p=0.4))
    f, x = lab.net_gradients(setup), [lab.vector(setup.task.initial)] * 4
    for rnd, shared, store in lab.play(setup, 5):
        for i in range(4):
            for _ in range(rnd.steps):
                x[i] = x[i] - 0.1 / 0.6 * f[i](x[i])
            model = setup.method.personal_params(setup.task, shared, store[i])
            np.testing.assert_allclose(lab.vector(model), x[i], rtol=0, atol=1e-13)


def test_with_steps_all_the_way_to_the_mean_it_is_fedavg():
    method = L2GD(eta=0.1, lam=4.0, p=0.4)
    setup = ref.setup(method)
    other = ref.setup(FedAvg(eta=0.1 / 0.6, users="equal"))
    theirs, kept = other.method.init_shared(other.task), ref.store(other)
    for rnd, shared, store in lab.play(setup, 5):
        same = ref.announced(other, 4, rnd.index).announce(steps=rnd.steps)
        theirs = ref.play(other, theirs, {}, kept, [0, 1, 2, 3], same).shared
        ref.assert_same(shared, ref.arrays(theirs), 1e-13)
        for i in range(4):
            ref.assert_same({name: store[i][name] for name in shared}, ref.arrays(theirs), 1e-13)


# -- the solution of objective (1)


def solution(f, lam):
    """Solve (H_i + λ) x_i - λ x̄ = b_i for all clients at once."""
    n, d = len(f), len(f[0].b)
    system = np.kron(np.eye(n) - np.ones((n, n)) / n, lam * np.eye(d))
    for i, q in enumerate(f):
        system[i * d : (i + 1) * d, i * d : (i + 1) * d] += q.H
    return np.linalg.solve(system, np.concatenate([q.b for q in f])).reshape(n, d)


def test_at_the_solution_the_mean_step_is_zero():
    """The two kinds of steps cancel, weighted with their probabilities. Neither of them is zero."""
    setup, f = lab.uneven(L2GD(eta=0.01, lam=3.0, p=0.4, mu=0.1))
    best, task, method = solution(f, 3.0), setup.task, setup.method
    index = next(i for i in range(1, 50) if pulls(method, Round(i, 3, 36, 3, setup.seed)) == 1)
    rnd = ref.announced(setup, 3, index).announce(steps=1)
    mean = trees(task, best.mean(0))
    for i in range(3):
        personal = {**trees(task, best[i]), ".visited": ~task.flag()}
        reply = method.local_update(task, mean, personal, setup.data(i, "train", 1), rnd)
        step = lab.vector(reply.personal, names=lab.LINEAR) - best[i]
        pull = lab.vector(method.receive(task, mean, personal, rnd), names=lab.LINEAR) - best[i]
        np.testing.assert_allclose(0.6 * step + 0.4 * pull, 0, rtol=0, atol=1e-12)
        assert np.abs(pull).max() > 1e-4


def trees(task, vector):
    weight, bias = (task.initial[name] for name in lab.LINEAR)
    cut = weight.numel()
    return {
        "head.weight": weight.new_tensor(vector[:cut]).view_as(weight),
        "head.bias": bias.new_tensor(vector[cut:]).view_as(bias),
    }


@pytest.mark.parametrize("lam", [0.3, 3.0])
def test_the_models_stay_near_the_solution_as_the_theorem_says(lam):
    """The squared distance is below (1 - η μ)^t of that at the start, plus (2η/μ) Σ_i of the noise of the coin."""
    mu, p = 0.5, lam / (3.0 + lam)
    _, f = lab.least_squares(L2GD(eta=1e-3, lam=lam, p=p, mu=mu), mu=0.1)
    L = max(np.linalg.eigvalsh(q.H)[-1] for q in f)
    least = min(np.linalg.eigvalsh(q.H)[0] for q in f)
    best = solution(f, lam)
    noise = sum(
        np.sum(q.gradient(x) ** 2) / (1 - p) + lam**2 / p * np.sum((x - best.mean(0)) ** 2)
        for q, x in zip(f, best, strict=True)
    )
    ends = []
    for share in (1.0, 0.1):
        eta = share * min((1 - p) / L, p / lam) / 2
        setup, _ = lab.least_squares(L2GD(eta=eta, lam=lam, p=p, mu=mu), mu=0.1)
        start = np.sum((lab.vector(setup.task.initial, names=lab.LINEAR) - best) ** 2)
        taken, away, models = 0, [], []
        for rnd, shared, store in lab.play(setup, int(60 / share)):
            taken += rnd.steps + pulls(setup.method, rnd)
            own = [setup.method.personal_params(setup.task, shared, store[i]) for i in range(3)]
            models.append([lab.vector(x, names=lab.LINEAR) for x in own])
            away.append(np.sum((models[-1] - best) ** 2))
        late = len(away) // 2
        bound = (1 - eta * least) ** (taken // 2) * start + 2 * eta / least * noise
        ends.append(np.mean(away[late:]))
        assert ends[-1] < bound
    assert ends[1] < 0.4 * ends[0], "the distance falls with the step size"
    middle = np.mean(models[late:], 0)
    np.testing.assert_allclose(middle, best, rtol=0, atol=0.35 * np.sqrt(ends[1]) + 0.02)


def test_the_solutions_lie_between_own_and_common_models():
    """For a small λ they are the local optima, for a large one the minimizer of the mean objective."""
    _, f = lab.uneven(L2GD(mu=0.1))
    common = np.linalg.solve(sum(q.H for q in f), sum(q.b for q in f))
    np.testing.assert_allclose(solution(f, 1e-9), [q.minimum() for q in f], rtol=0, atol=1e-6)
    np.testing.assert_allclose(solution(f, 1e9), [common] * 3, rtol=0, atol=1e-6)


# -- adaptation, and settings


def test_adaptation_solves_the_clients_part_with_the_mean_fixed():
    setup, f = lab.uneven(L2GD(eta=0.02, lam=3.0, p=0.4, mu=0.1))
    *_, (_, shared, store) = lab.play(setup, 3)
    data, mean = setup.data(1, "train", 0), lab.vector(shared, names=lab.LINEAR)
    x = lab.vector(setup.method.personal_params(setup.task, shared, store[1]), names=lab.LINEAR)
    for _ in range(4):
        x = x - 0.02 * (f[1].gradient(x) + 3.0 * (x - mean))
    adapted = setup.method.adapt(setup.task, shared, store[1], data, 4)
    model = setup.method.personal_params(setup.task, shared, adapted)
    np.testing.assert_allclose(lab.vector(model, names=lab.LINEAR), x, rtol=0, atol=1e-12)
    new = setup.method.adapt(setup.task, shared, ref.store(setup)[1], data, 2000)
    solved = np.linalg.solve(f[1].H + 3.0 * np.eye(5), f[1].b + 3.0 * mean)
    np.testing.assert_allclose(lab.vector(new, names=lab.LINEAR), solved, rtol=0, atol=1e-9)


def test_adaptation_without_any_pull_is_plain_descent():
    setup = ref.setup(L2GD(eta=0.1, lam=0.0))
    x, f = lab.vector(setup.task.initial), lab.net_gradients(setup)
    adapted = setup.method.adapt(
        setup.task, setup.task.shared_model(), ref.store(setup)[0], setup.data(0, "train", 0), 3
    )
    for _ in range(3):
        x = x - 0.1 * f[0](x)
    np.testing.assert_allclose(lab.vector(adapted), x, rtol=0, atol=1e-13)


def test_steps_past_the_mean_are_refused():
    with pytest.raises(UserError, match="lower eta or lam, or raise p"):
        ref.announced(ref.setup(L2GD(eta=0.5, lam=1.0, p=0.4)), 4)
