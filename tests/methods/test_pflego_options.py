"""PFLEGO beyond Algorithm 1: rates from theory, other solvers, undone steps, and convergence."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.func import grad, jacrev

import reference as ref
from coterie import Federation, train
from coterie.core.counting import CountFlops
from coterie.core.steps import head_descent, head_smoothness
from coterie.core.tree import pick
from coterie.errors import DivergedError, UserError
from coterie.methods import PFLEGO
from coterie.models.logreg import LogReg
from coterie.models.module import Own
from coterie.streams import torch_seeded


def features_of(setup, i):
    """Return (head, features, data) of a client before the first round."""
    data, personal = setup.data(i, "train", 1), ref.store(setup)[i]
    features, _, _ = setup.task.body_vjp({**setup.task.shared_body(), **personal}, data.x)
    return pick(personal, setup.task.head), features, data


def largest_eigenvalue(task, head, features, data) -> float:
    """Return the largest eigenvalue of the Hessian of the head's loss, by PyTorch."""
    blocks = jacrev(grad(task.head_loss))(head, features, data)
    sizes = {name: value.numel() for name, value in head.items()}
    rows = [torch.cat([blocks[a][b].reshape(sizes[a], sizes[b]) for b in head], dim=1) for a in head]
    return float(torch.linalg.eigvalsh(torch.cat(rows)).max())


def test_no_head_is_less_smooth_than_said_and_one_of_two_equal_classes_is_just_so():
    setup = ref.setup(PFLEGO())
    for client, outputs in ((1, 2), (0, 3)):
        head, features, data = features_of(setup, client)
        assert len(head["head.bias"]) == outputs
        L = float(head_smoothness(setup.task, head, features, data))
        assert largest_eigenvalue(setup.task, head, features, data) < L
        level = {name: torch.zeros_like(value) for name, value in head.items()}
        if outputs == 2:
            assert largest_eigenvalue(setup.task, level, features, data) == pytest.approx(L, rel=1e-6)
        else:
            level["head.bias"][2] = -60.0  # rules out the third class
            assert largest_eigenvalue(setup.task, level, features, data) == pytest.approx(L, rel=1e-6)


def numbers(seed=0) -> Federation:
    rng = np.random.default_rng(seed)
    clients = {}
    for i, size in enumerate((12, 7, 20)):
        x = rng.normal(size=(size, 4))
        clients[f"client-{i}"] = (x, x @ rng.normal(size=4) + i, x[:2], x[:2, 0])
    return Federation.from_arrays(clients, regression=True)


def test_of_squared_errors_the_smoothness_is_exact():
    setup = ref.setup(PFLEGO(), numbers())
    head, features, data = features_of(setup, 2)
    L = float(head_smoothness(setup.task, head, features, data))
    assert largest_eigenvalue(setup.task, head, features, data) == pytest.approx(L, rel=1e-6)


@pytest.mark.parametrize("solver", ["gd", "momentum", "adam"])
def test_a_penalty_is_that_of_torch_and_undoes_steps_that_raise_the_sum(solver):
    """Weight decay of torch.optim is the gradient of the same penalty."""
    setup = ref.setup(PFLEGO(tau=6, beta=0.05, solver=solver, rho=0.0, mu=0.3))
    head, features, data = features_of(setup, 0)
    leaves = {name: value.clone().requires_grad_() for name, value in head.items()}
    kinds = {"adam": torch.optim.Adam(leaves.values(), lr=0.05, weight_decay=0.3)}
    momentum = 0.9 if solver == "momentum" else 0.0
    plain = torch.optim.SGD(leaves.values(), lr=0.05, momentum=momentum, weight_decay=0.3)
    optimizer = kinds.get(solver, plain)
    for _ in range(5):
        optimizer.zero_grad()
        setup.task.head_loss(leaves, features, data).backward()
        optimizer.step()
    shared, rnd = setup.task.shared_body(), ref.announced(setup, 1)
    mine = setup.method.local_update(setup.task, shared, ref.store(setup)[0], data, rnd)
    ref.assert_same(mine.personal, ref.arrays({name: value.detach() for name, value in leaves.items()}), 1e-12)
    adapted = setup.method.adapt(setup.task, shared, ref.store(setup)[0], data, 5)
    ref.assert_same(adapted, ref.arrays(mine.personal), 1e-12)

    # from a head that fits the data, the penalty alone moves it: the loss rises, and the sum falls
    fitting = head_descent(setup.task, head, features, data, 5000, 0.5)
    start = {**ref.store(setup)[0], **fitting}
    reply = setup.method.local_update(setup.task, shared, start, data, rnd)
    assert float(reply.numbers["undone"]) == 0
    assert setup.task.head_loss(reply.personal, features, data) > setup.task.head_loss(fitting, features, data)


def test_the_smoothness_with_a_penalty_is_larger_by_mu():
    setup = ref.setup(PFLEGO(), numbers())
    head, features, data = features_of(setup, 2)
    plain, penal = (float(head_smoothness(setup.task, head, features, data, mu)) for mu in (0.0, 0.7))
    assert penal == pytest.approx(plain + 0.7, rel=1e-12)
    mine, known = (
        PFLEGO(tau=4, beta=beta, mu=0.7, rho=0.0).local_update(
            setup.task, setup.task.shared_body(), ref.store(setup)[2], data, ref.announced(setup, 1, index=2)
        )
        for beta in ("auto", 1 / penal)
    )
    ref.assert_same(mine.personal, ref.arrays(known.personal), 1e-12)


def test_head_steps_below_two_over_L_with_the_penalty_end_at_its_minimum():
    """For squared errors the minimum is that of ridge regression, in closed form."""
    setup = ref.setup(PFLEGO(), numbers())
    head, features, data = features_of(setup, 2)
    L = float(head_smoothness(setup.task, head, features, data, 0.5))
    found = head_descent(setup.task, head, features, data, 4000, 1 / L, mu=0.5)
    phi = np.hstack([features.numpy(), np.ones((len(features), 1))])
    w = np.linalg.solve(2 * phi.T @ phi / len(phi) + 0.5 * np.eye(phi.shape[1]), 2 * phi.T @ data.y.numpy() / len(phi))
    np.testing.assert_allclose(torch.cat([found["head.weight"][0], found["head.bias"]]).numpy(), w, atol=1e-9)


@pytest.mark.parametrize("times", [0.5, 1.0, 1.9])
@pytest.mark.parametrize("clients", [ref.federation, numbers])
def test_the_loss_never_rises_over_head_steps_below_two_over_L(times, clients):
    setup = ref.setup(PFLEGO(), clients())
    for client in range(3):
        head, features, data = features_of(setup, client)
        rate = times / float(head_smoothness(setup.task, head, features, data))
        losses = []
        for _ in range(60):
            losses.append(float(setup.task.head_loss(head, features, data)))
            head = head_descent(setup.task, head, features, data, 1, rate)
        assert all(after <= before + 1e-15 for before, after in itertools.pairwise(losses))
        assert losses[-1] < losses[0]


def test_above_two_over_L_squared_errors_rise():
    setup = ref.setup(PFLEGO(), numbers())
    head, features, data = features_of(setup, 0)
    rate = 2.1 / float(head_smoothness(setup.task, head, features, data))
    after = head_descent(setup.task, head, features, data, 200, rate)
    assert setup.task.head_loss(after, features, data) > setup.task.head_loss(head, features, data)


def test_an_automatic_beta_is_each_clients_own_one_over_L():
    auto, plain = ref.setup(PFLEGO(tau=4, beta="auto")), ref.setup(PFLEGO(tau=4))
    rnd = ref.announced(auto, 2, index=2)
    for client in (0, 2):
        head, features, data = features_of(auto, client)
        beta = 1 / float(head_smoothness(auto.task, head, features, data))
        shared = auto.task.shared_body()
        mine = auto.method.local_update(auto.task, shared, ref.store(auto)[client], data, rnd)
        by_hand = PFLEGO(tau=4, beta=beta)
        expected = by_hand.local_update(plain.task, shared, ref.store(plain)[client], data, rnd)
        ref.assert_same(mine.personal, ref.arrays(expected.personal), 1e-12)


def test_a_head_of_one_output_has_nothing_to_learn_and_stays_finite():
    setup = ref.setup(PFLEGO(beta="auto"))
    assert setup.federation.num_outputs(3, "local") == 1
    data = setup.data(3, "train", 1)
    _, numbers, mine, _ = setup.method.local_update(
        setup.task, setup.task.shared_body(), ref.store(setup)[3], data, ref.announced(setup, 1)
    )
    ref.assert_same(mine, ref.arrays(ref.store(setup)[3]), 0)
    assert float(numbers["undone"]) == 0


def test_an_automatic_beta_needs_a_linear_head():
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 5)))
    setup = ref.setup(PFLEGO(beta="auto"), model=Own(net=net, head_name="1"))
    with pytest.raises(UserError, match="needs a head that is a single linear layer"):
        setup.method.local_update(
            setup.task,
            setup.task.shared_body(),
            ref.store(setup)[0],
            setup.data(0, "train", 1),
            ref.announced(setup, 1),
        )


@pytest.mark.parametrize("solver", ["momentum", "adam"])
def test_other_solvers_are_those_of_torch(solver):
    setup = ref.setup(PFLEGO(tau=6, beta=0.05, solver=solver, rho=0.0))
    head, features, data = features_of(setup, 0)
    leaves = {name: value.clone().requires_grad_() for name, value in head.items()}
    if solver == "momentum":
        optimizer = torch.optim.SGD(leaves.values(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(leaves.values(), lr=0.05)
    for _ in range(5):
        optimizer.zero_grad()
        setup.task.head_loss(leaves, features, data).backward()
        optimizer.step()
    mine = setup.method.local_update(
        setup.task, setup.task.shared_body(), ref.store(setup)[0], data, ref.announced(setup, 1)
    )
    ref.assert_same(mine.personal, ref.arrays({name: value.detach() for name, value in leaves.items()}), 1e-12)


@pytest.mark.parametrize("solver", ["gd", "momentum", "adam"])
def test_head_steps_that_raise_the_loss_are_undone(solver):
    """Such a round then consists of its joint step."""
    wild, single = (ref.setup(PFLEGO(tau=tau, beta=5e3, solver=solver), numbers()) for tau in (9, 1))
    shared, data = wild.task.shared_body(), wild.data(1, "train", 1)
    mine, expected = (
        setup.method.local_update(setup.task, shared, ref.store(setup)[1], data, ref.announced(setup, 2))
        for setup in (wild, single)
    )
    assert float(mine.numbers["undone"]) == 1
    assert float(expected.numbers["undone"]) == 0
    ref.assert_same(mine.personal, ref.arrays(expected.personal), 0)
    ref.assert_same(mine.tensors, ref.arrays(expected.tensors), 0)


@pytest.mark.parametrize(
    ("head_step", "bound", "times"), [("algorithm1", "(2/L)(r/I)", 2 / 3), ("exact", "(2/L)(r/I)/alpha_i", 2)]
)
def test_the_server_is_told_of_undone_steps_and_of_bounds(head_step, bound, times):
    setup = ref.setup(PFLEGO(tau=9, beta=5e3, rho=1e3, server="sgd", head_step=head_step), numbers())
    rnd = ref.announced(setup, 2)
    played = ref.play(setup, setup.task.shared_body(), {}, ref.store(setup), [0, 2], rnd)
    weights = np.array([12, 20]) / 32
    L = sum(
        w * float(head_smoothness(setup.task, *features_of(setup, i))) for w, i in zip(weights, (0, 2), strict=True)
    )
    assert set(played.notes) == {"undone", "beta", "rho"}
    assert played.notes["undone"].startswith(
        "the head steps of all clients of the round raised the loss, so they were undone"
    )
    for name, rate, below, value in (("beta", 5000.0, "2/L", 2 / L), ("rho", 1000.0, bound, times * 2 / L)):
        note = played.notes[name]
        assert note.startswith(f"method.{name} = {rate} is too large for all clients of the round: ")
        assert note.endswith(f" if it is below {below}, which is {value:.3g} on average; try a value below that")


def test_a_bound_that_is_exceeded_without_harm_is_recorded_and_not_warned_about():
    setup = ref.setup(PFLEGO(tau=1, beta=1e-9, rho=1e3, server="sgd"), numbers())
    played = ref.play(setup, setup.task.shared_body(), {}, ref.store(setup), [0, 2], ref.announced(setup, 2))
    assert list(played.notes) == ["rho_bound"]
    assert 0 < played.notes["rho_bound"] < 1e3


@pytest.mark.parametrize("server", ["sgd", "adam"])
@pytest.mark.parametrize("head_step", ["algorithm1", "exact"])
def test_a_rate_is_compared_with_each_clients_own_bound(head_step, server):
    """The joint step on the head has the rate rho I/r, times alpha_i if it is exact, for both servers."""
    plain = ref.setup(PFLEGO(tau=2), numbers())
    L = [float(head_smoothness(plain.task, *features_of(plain, i))) for i in range(3)]
    sizes = plain.federation.sizes()
    factors = 3 / 2 * (sizes / sizes.sum() if head_step == "exact" else np.ones(3))
    bounds = 2 / (np.array(L) * factors)
    for client in range(3):
        for times in (0.99, 1.01):
            options = {"tau": 2, "beta": times * 2 / L[client], "rho": times * bounds[client]}
            setup = ref.setup(PFLEGO(**options, server=server, head_step=head_step), numbers())
            reply = setup.method.local_update(
                setup.task,
                setup.task.shared_body(),
                ref.store(setup)[client],
                setup.data(client, "train", 1),
                ref.announced(setup, 2),
            )
            assert float(reply.numbers["beta_steep"]) == float(reply.numbers["rho_steep"]) == (times > 1)


@pytest.mark.parametrize(
    "options", [{"beta": "auto"}, {"beta": 1e6, "solver": "momentum"}, {"beta": 1e6, "solver": "adam"}]
)
def test_a_bound_of_plain_descent_is_not_applied_to_something_else(options):
    setup = ref.setup(PFLEGO(tau=2, rho=1e-9, **options), numbers())
    reply = setup.method.local_update(
        setup.task, setup.task.shared_body(), ref.store(setup)[0], setup.data(0, "train", 1), ref.announced(setup, 2)
    )
    assert float(reply.numbers["beta_steep"]) == float(reply.numbers["rho_steep"]) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_client_whose_features_are_all_zero_is_heard(dtype):
    """Without a bias its loss never changes. The rate that follows from the smoothness is finite."""
    setup = ref.setup(PFLEGO(tau=3, beta="auto"), model=LogReg())
    features, data = torch.zeros(6, 4, dtype=dtype), setup.data(0, "train", 1)
    data = data._replace(y=torch.zeros(6, dtype=torch.int64), mask=torch.ones(6, dtype=torch.bool))
    head = {"head.weight": torch.ones(2, 4, dtype=dtype)}
    L = head_smoothness(setup.task, head, features, data)
    assert 0 < float(L) < 1e-30
    assert torch.isfinite(1 / L)


def test_nothing_is_said_where_there_is_nothing_to_say():
    setup = ref.setup(PFLEGO(tau=3, beta=1e-3, rho=1e-3, server="sgd"), numbers())
    assert ref.play(setup, setup.task.shared_body(), {}, ref.store(setup), [0], ref.announced(setup, 1)).notes == {}
    reply = setup.method.local_update(
        setup.task, setup.task.shared_body(), ref.store(setup)[0], setup.data(0, "train", 2), ref.announced(setup, 1, 2)
    )
    assert "smoothness" not in reply.numbers  # every fiftieth round is enough


def test_the_rate_of_the_joint_step_falls():
    rates = {}
    for index in (1, 5):
        setup = ref.setup(PFLEGO(tau=1, rho=0.2, rho_decay=0.5, server="sgd"))
        shared = setup.task.shared_body()
        played = ref.play(setup, shared, {}, store := ref.store(setup), [0], ref.announced(setup, 1, index))
        rates[index] = [(played.shared[name] - shared[name]) for name in shared]
        rates[index].append(store[0]["head.weight"] - ref.store(setup)[0]["head.weight"])
    for first, fifth in zip(rates[1], rates[5], strict=True):
        torch.testing.assert_close(first, fifth * (1 + 0.5 * 4), rtol=1e-10, atol=1e-14)


def test_alpha_over_the_cohort_is_larger_by_what_is_missing():
    sizes = torch.tensor([5.0, 8.0])
    setups = {alpha: ref.setup(PFLEGO(alpha=alpha)) for alpha in ("all", "cohort")}
    rnd = ref.announced(setups["all"], 2)
    torch.testing.assert_close(setups["all"].method.weights(sizes, rnd), 4 / 2 * sizes / 17)
    torch.testing.assert_close(setups["cohort"].method.weights(sizes, rnd), 4 / 2 * sizes / 13)
    for alpha in ("cohort", "normalized"):
        with pytest.raises(UserError, match=f'exact.*"{alpha}"'):
            ref.setup(PFLEGO(alpha=alpha, head_step="exact"))


@pytest.mark.parametrize("alpha", ["all", "cohort"])
def test_the_loss_of_a_round_is_the_mean_over_its_clients(alpha):
    setup = ref.setup(PFLEGO(tau=1, alpha=alpha, server="sgd"))
    shared, rnd = setup.task.shared_body(), ref.announced(setup, 2)
    losses = [
        ref.loss_and_gradient(ref.arrays({**shared, **ref.store(setup)[i]}), *ref.examples(setup, i))[0] for i in (0, 2)
    ]
    played = ref.play(setup, shared, {}, ref.store(setup), [0, 2], rnd)
    assert played.loss == pytest.approx((5 * losses[0] + 8 * losses[1]) / 13, rel=1e-12)


def test_corollary_3_1_the_gradient_falls_as_one_over_the_root_of_T():
    """With rho = sqrt(r/I) / (L sqrt(T)), the mean over rounds of the squared gradient is below the bound (21).

    On a smooth problem with several seeds, it falls at least as fast over a decade of T.
    """
    num_clients, r, L = 4, 2, 2.0
    means: dict[int, list[float]] = {T: [] for T in (20, 60, 200)}
    for seed in range(3):
        federation, net = smooth_problem(seed)
        for T, found in means.items():
            rho = math.sqrt(r / num_clients / T) / L
            method = PFLEGO(tau=2, beta=0.05, rho=rho, server="sgd", head_step="exact")
            setup = ref.setup(method, federation, model=Own(net=net, head_name="2"))
            rng, store, shared = np.random.default_rng(seed), ref.store(setup), setup.method.init_shared(setup.task)
            squares, G, at_first = [], 0.0, objective(setup, shared, store)
            for index in range(1, T + 1):
                gradients = body_gradients(setup, shared, store)
                squares.append(float((gradients.mean(0) ** 2).sum()))  # all clients have the same size
                G = max(G, float(gradients.norm(dim=1).max()))
                if index % 20 == 1:
                    assert steepest(setup, shared, store) < L
                cohort = np.sort(rng.choice(num_clients, r, replace=False)).tolist()
                shared = ref.play(setup, shared, {}, store, cohort, ref.announced(setup, r, index)).shared
            assert (
                np.mean(squares) < at_first / (T * rho) + L / 2 * G**2 * (num_clients + r) / r * rho
            )  # no loss is below 0
            found.append(np.mean(squares))
    slope = np.polyfit(np.log(list(means)), np.log([np.mean(found) for found in means.values()]), 1)[0]
    assert slope < -0.4


def smooth_problem(seed) -> tuple[Federation, torch.nn.Module]:
    """Return squared errors of a tanh network, on targets that differ between four clients in scale only."""
    rng = np.random.default_rng(seed)
    w, clients = rng.normal(size=3), {}
    for i in range(4):
        x = rng.normal(size=(40, 3))
        y = (1 + 0.3 * i) * np.tanh(x @ w) + 0.1 * rng.normal(size=40)
        clients[f"client-{i}"] = (x, y, x[:1], y[:1])
    with torch_seeded(seed):
        net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return Federation.from_arrays(clients, regression=True), net


def objective(setup, shared, store) -> float:
    """Return objective (1) for clients of equal size."""
    return float(np.mean([float(setup.task.loss({**shared, **store[i]}, data)[0]) for i, data in everyone(setup)]))


def everyone(setup):
    return [(i, setup.data(i, "train", 0)) for i in range(len(setup.federation.ids))]


def body_gradients(setup, shared, store) -> torch.Tensor:
    """Return the gradient of each client's loss over the body, as rows."""
    each = [
        grad(lambda theta, i=i, data=data: setup.task.loss({**theta, **store[i]}, data)[0])(shared)
        for i, data in everyone(setup)
    ]
    return torch.stack([torch.cat([value.flatten() for value in g.values()]) for g in each])


def steepest(setup, shared, store) -> float:
    """Return the largest eigenvalue of the Hessian of objective (1) over the body."""
    clients = [(store[i], data) for i, data in everyone(setup)]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([value.numel() for value in shared.values()])
        theta = {name: part.reshape(shared[name].shape) for name, part in zip(shared, parts, strict=True)}
        return torch.stack([setup.task.loss({**theta, **head}, data)[0] for head, data in clients]).mean()

    H = jacrev(grad(loss))(torch.cat([value.flatten() for value in shared.values()]))
    return float(torch.linalg.eigvalsh(H)[-1])


def test_logistic_regression_is_all_head():
    setup = ref.setup(PFLEGO(tau=3, beta="auto"), model=LogReg())
    assert setup.task.shared_body() == {}
    head, features, data = features_of(setup, 0)
    tensors, numbers, mine, _ = setup.method.local_update(
        setup.task, {}, ref.store(setup)[0], data, ref.announced(setup, 1)
    )
    assert tensors == {}
    assert numbers.keys() == {"loss", "undone", "smoothness", "beta_steep", "rho_steep"}
    assert setup.task.head_loss(mine, features, data) < setup.task.head_loss(head, features, data)


@pytest.mark.parametrize("head_step", ["algorithm1", "exact"])
def test_a_rate_at_the_limit_diverges_and_says_so(head_step):
    """I/r times the largest rate is more than float32 can hold."""
    with pytest.raises(DivergedError, match="lower the learning rates"):
        train(
            ref.federation(), method=PFLEGO(rho=1e38, head_step=head_step, server="sgd"), rounds=3, clients_per_round=1
        )


def test_one_local_step_makes_no_pass_through_the_head_besides_the_joint_one():
    setup = ref.setup(PFLEGO(tau=1))
    rnd = ref.announced(setup, 2, index=2)
    head = setup.load.work.probe.flops(3)
    assert setup.method.passes(5, rnd).head_forwards == 0
    with CountFlops() as counted:
        setup.method.local_update(
            setup.task, setup.method.init_shared(setup.task), ref.store(setup)[0], setup.data(0, "train", 2), rnd
        )
    assert counted.total == 5 * (head.body_forward + head.body_backward + head.head_step)
