"""Clients that join, leave, return, and do not answer."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
import reference as ref
from coterie.errors import UserError
from coterie.measure.record import PopulationSize
from coterie.methods import PFLEGO, FedAvg
from coterie.prepare import prepare
from coterie.recipe import Recipe
from coterie.server.population import Population, PopulationSettings
from coterie.training import Training


def population(federation=None, seed=0, **options) -> Population:
    federation = federation or ref.federation((5, 3, 8, 2, 4))
    return Population(PopulationSettings(**options), federation.ids, federation.is_new, seed)


def test_a_schedule_is_followed_and_who_comes_first_is_absent_at_first():
    schedule = [
        {"round": 5, "join": ["client-0"], "leave": ["client-4"]},
        {"round": 3, "join": ["client-1"], "leave": ["client-0"]},
    ]
    who = population(schedule=schedule)
    assert [who.present(t).tolist() for t in (1, 2, 3, 4, 5, 9)] == [
        [0, 2, 3, 4],
        [0, 2, 3, 4],
        [1, 2, 3, 4],
        [1, 2, 3, 4],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]


def test_who_is_there_depends_on_the_round_and_the_seed_only():
    settings = {"absent": 0.4, "join": 0.3, "leave": 0.2}
    forward, jumping = population(**settings), population(**settings)
    seen = [forward.present(t).tolist() for t in range(1, 30)]
    assert [jumping.present(t).tolist() for t in reversed(range(1, 30))] == seen[::-1]
    assert seen != [population(seed=1, **settings).present(t).tolist() for t in range(1, 30)]


def test_rates_are_the_share_of_moves():
    federation = ref.federation((2,) * 300)
    who = population(federation, absent=0.5, join=0.1, leave=0.3)
    assert len(who.present(0)) == 150
    before, came, went = who.present(0), [], []
    for t in range(1, 60):
        after = who.present(t)
        came.append(len(np.setdiff1d(after, before)) / (300 - len(before)))
        went.append(len(np.setdiff1d(before, after)) / len(before))
        before = after
    assert np.mean(came) == pytest.approx(0.1, abs=0.01)
    assert np.mean(went) == pytest.approx(0.3, abs=0.03)


def test_new_users_never_join():
    who = population(ref.federation((5, 3, 8, 2), new=2), join=0.9)
    assert all(who.present(t).max() < 2 for t in range(20))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"schedule": [{"round": 2, "join": ["client-9"]}]}, "names client 'client-9'"),
        ({"schedule": [{"round": 2}], "join": 0.1}, "omit population.join"),
        ({"schedule": [{"round": 2}, {"round": 2}]}, "round 2 more than once"),
    ],
)
def test_what_cannot_be_is_said(options, words):
    with pytest.raises(UserError, match=words):
        population(**options)


def simulation(method, population, rounds=6, eval_every=3, **run):
    recipe = Recipe.parse(
        {
            "run": {"seed": 3, "rounds": rounds, "eval_every": eval_every, **run},
            "engine": {"dtype": "float64", "kind": "loop"},
            "population": population,
            "eval": {"adapt_steps": 1},
        }
    )
    return prepare(replace(recipe, method=method), ref.federation((5, 3, 8, 2)))


def test_I_and_N_are_those_of_the_clients_present():
    schedule = [{"round": 2, "leave": ["client-2"]}, {"round": 4, "join": ["client-2"]}]
    announced = []

    class Listening(PFLEGO):
        def plan(self, rnd):
            announced.append((rnd.index, rnd.num_clients, rnd.num_examples))
            return super().plan(rnd)

    game = simulation(Listening(tau=2), {"schedule": schedule}, rounds=4)
    records = list(game.rounds.play())
    assert announced[-4:] == [(1, 4, 18), (2, 3, 10), (3, 3, 10), (4, 4, 18)]
    assert [record.population for record in records] == [None, PopulationSize(3, 10), None, PopulationSize(4, 18)]
    assert all("client-2" not in record.cohort for record in records[1:3])


def test_who_returns_has_the_head_it_left_with():
    schedule = [{"round": 2, "leave": ["client-2"]}, {"round": 5, "join": ["client-2"]}]
    game = simulation(PFLEGO(tau=2), {"schedule": schedule})
    played = game.rounds.play()
    next(played)
    left_with = {name: value.clone() for name, value in game.clients.store[2].items()}
    for _ in range(3):
        next(played)
    for name, value in left_with.items():
        assert torch.equal(game.clients.store[2][name], value)
    next(played)
    assert any(not torch.equal(game.clients.store[2][name], value) for name, value in left_with.items())


def test_only_clients_that_are_there_are_evaluated():
    schedule = [{"round": 2, "leave": ["client-1"]}, {"round": 4, "join": ["client-1"]}]
    game = simulation(PFLEGO(tau=2), {"schedule": schedule}, rounds=4, eval_every=1)
    for present in ([0, 1, 2, 3], [0, 2, 3], [0, 2, 3], [0, 1, 2, 3]):
        next(game.rounds.play())
        assert game.rounds.latest.test.as_is.clients == game.rounds.latest.test.adapted.clients == present
        assert game.rounds.evaluate().test.as_is.clients == present


def test_a_round_where_nobody_is_there_changes_nothing():
    everyone = [f"client-{i}" for i in range(4)]
    game = simulation(FedAvg(tau=1), {"schedule": [{"round": 2, "leave": everyone}]}, rounds=2)
    played = game.rounds.play()
    next(played)
    before = {name: value.clone() for name, value in game.rounds.shared.items()}
    record = next(played)
    assert record.cohort == ()
    assert record.eval.train_loss is None
    assert record.eval.existing.as_is.mean is None
    assert all(torch.equal(game.rounds.shared[name], value) for name, value in before.items())


def test_who_does_not_answer_was_sent_the_model_and_is_named():
    game = simulation(FedAvg(tau=1), {"dropout": 0.5}, rounds=20)
    sizes = 4 * sum(value.numel() * value.element_size() for value in game.rounds.shared.values())
    records = list(game.rounds.play())
    for record in records:
        assert sorted(record.cohort + record.silent) == [f"client-{i}" for i in range(4)]
        assert record.cost.bytes_down == sizes
    assert 20 < sum(len(record.cohort) for record in records) < 60


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize(
    ("run", "drawn"),
    [
        ({"clients_per_round": 3}, lambda asked: 3),
        ({"participation": "independent", "probability": 0.6}, lambda asked: 4 * 0.6),
        ({"participation": "uniform", "clients_range": [1, 4]}, lambda asked: asked),
    ],
)
def test_r_is_the_number_of_answers_that_was_to_be_expected(run, drawn, dropout):
    """For "fixed" and "independent" it is known before the draw, for "uniform" once the size of the cohort is drawn."""
    announced = []

    class Listening(PFLEGO):
        def plan(self, rnd):
            announced.append(rnd.cohort_size)
            return super().plan(rnd)

    game = simulation(Listening(tau=2), {"dropout": dropout}, rounds=8, **run)
    announced.clear()
    asked = [len(record.cohort + record.silent) for record in game.rounds.play()]
    assert announced == pytest.approx([drawn(size) * (1 - dropout) for size in asked])


def test_pflegos_gradient_stays_unbiased_when_clients_drop_out():
    """The mean over all cohorts of two of four clients and all sets of answers, each with its probability, is the full
    gradient, if r is what the test above expects."""
    method, q, r = PFLEGO(tau=1, server="sgd", rho=0.1), 0.3, 2
    setup = ref.setup(method)
    shared = method.init_shared(setup.task)

    def gradient(cohort: list[int], expected: float) -> dict[str, torch.Tensor]:
        rnd = ref.announced(setup, expected)
        played = ref.play(setup, shared, {}, ref.store(setup), cohort, rnd)
        return {name: (shared[name] - after) / 0.1 for name, after in played.shared.items()}

    mean = {name: torch.zeros_like(value) for name, value in shared.items()}
    cohorts = list(itertools.combinations(range(4), r))
    for cohort in cohorts:
        for answers in itertools.product([True, False], repeat=r):
            kept = [i for i, answered in zip(cohort, answers, strict=True) if answered]
            probability = (1 - q) ** len(kept) * q ** (r - len(kept)) / len(cohorts)
            if kept:
                for name, g in gradient(kept, r * (1 - q)).items():
                    mean[name] += probability * g
    for name, g in gradient([0, 1, 2, 3], 4).items():
        torch.testing.assert_close(mean[name], g, rtol=1e-12, atol=1e-12)


def test_a_burst_makes_many_clients_fail_in_the_same_rounds():
    """A round is in a burst if one of the last three rounds began one: 1 - 0.9 ** 3 of all rounds."""
    who, everyone = population(ref.federation((2,) * 200), burst=0.1, burst_rounds=3, burst_dropout=0.9), np.arange(200)
    shares = np.array([len(who.answering(everyone, 200, t)[0]) / 200 for t in range(1, 3001)])
    inside = shares < 0.5
    assert inside.mean() == pytest.approx(1 - 0.9**3, abs=0.02)
    assert shares[inside].mean() == pytest.approx(0.1, abs=0.01)
    assert set(shares[~inside]) == {1.0}
    lengths = [len(list(run)) for burst, run in itertools.groupby(inside) if burst]
    assert min(lengths[1:-1]) == 3
    assert max(lengths) > 3  # a burst can begin during another one


def test_slow_clients_are_the_same_throughout_and_miss_deadlines_at_their_rate():
    who, everyone = population(ref.federation((2,) * 20, new=4), slow=0.25, late=0.6, dropout=0.2), np.arange(16)
    assert who.slow.sum() == 4
    assert not who.slow[16:].any()  # new users take no part
    answers = np.zeros(16)
    for t in range(1, 5001):
        answers[who.answering(everyone, 16, t)[0]] += 1 / 5000
    np.testing.assert_allclose(answers, np.where(who.slow[:16], 0.8 * 0.4, 0.8), atol=0.03)


def test_a_deadline_that_is_never_met_excludes_slow_clients():
    who = population(ref.federation((2,) * 10), slow=0.3, late=1.0)
    for t in range(1, 50):
        answering, r = who.answering(np.arange(10), 10, t)
        assert answering.tolist() == np.flatnonzero(~who.slow).tolist()
        assert r == pytest.approx(7)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ({"burst": 0.2, "burst_dropout": 0.5, "dropout": 0.1}, [0.9 - 0.2 * 0.4] * 3),
        ({"burst": 0.2, "burst_rounds": 2, "burst_dropout": 0.5}, [1 - 0.2 * 0.5, *[1 - (1 - 0.8**2) * 0.5] * 2]),
        ({"slow": 0.5, "late": 0.5, "dropout": 0.2}, [0.8 * 0.75] * 3),
        ({"slow": 0.5, "late": 0.5, "dropout": 0.2, "correct": False}, [1.0] * 3),
    ],
)
def test_r_is_the_expected_number_of_answers(options, share):
    """It depends on the round only because no burst can have begun before round 1."""
    who = population(ref.federation((5, 3, 8, 2)), **options)
    assert [who.answering(np.arange(4), 4, t)[1] for t in (1, 2, 3)] == pytest.approx([4 * each for each in share])


def mean_gradient(options, chances, r=2, index=5):
    """Average PFLEGO's gradient over all cohorts, all bursts and all sets of answers, each with its probability.

    `chances` are pairs of the probability that there is (not) a burst, and each client's probability to answer then.
    """
    method, federation = PFLEGO(tau=1, server="sgd", rho=0.1), ref.federation((5, 3, 8, 2))
    setup, mean = ref.setup(method), None
    shared = method.init_shared(setup.task)
    who = population(federation, **options)

    def gradient(cohort, expected):
        played = ref.play(setup, shared, {}, ref.store(setup), cohort, ref.announced(setup, expected))
        return torch.cat([((shared[name] - after) / 0.1).flatten() for name, after in played.shared.items()])

    cohorts = list(itertools.combinations(range(4), r))
    for cohort in cohorts:
        _, expected = who.answering(np.array(cohort), r, index)
        for state, answers in chances(who):
            for pattern in itertools.product([True, False], repeat=r):
                kept = [i for i, answered in zip(cohort, pattern, strict=True) if answered]
                each = [answers[i] if i in kept else 1 - answers[i] for i in cohort]
                probability = state * np.prod(each) / len(cohorts)
                if kept and probability:
                    part = probability * gradient(kept, expected)
                    mean = part if mean is None else mean + part
    single = [gradient([i], 4) for i in range(4)]  # alpha_i g_i
    return mean, single, who


def test_pflegos_gradient_stays_unbiased_when_clients_fail_in_bursts():
    options = {"burst": 0.3, "burst_rounds": 2, "burst_dropout": 0.8, "dropout": 0.1}
    begun = 1 - 0.7**2
    mean, single, _ = mean_gradient(options, lambda _: [(begun, [0.2] * 4), (1 - begun, [0.9] * 4)])
    torch.testing.assert_close(mean, sum(single), rtol=1e-12, atol=1e-12)
    uncorrected, _, _ = mean_gradient(
        {**options, "correct": False}, lambda _: [(begun, [0.2] * 4), (1 - begun, [0.9] * 4)]
    )
    torch.testing.assert_close(uncorrected, (begun * 0.2 + (1 - begun) * 0.9) * sum(single), rtol=1e-12, atol=1e-12)


def test_with_deadlines_the_expected_number_restores_the_length_of_the_step_but_not_its_direction():
    """Client i has the weight Pr(i) / mean Pr instead of 1."""
    options = {"slow": 0.5, "late": 0.6}
    mean, single, who = mean_gradient(options, lambda who: [(1.0, np.where(who.slow, 0.4, 1.0))])
    weights = np.where(who.slow, 0.4, 1.0) / 0.7
    assert weights.mean() == pytest.approx(1)
    torch.testing.assert_close(mean, sum(w * g for w, g in zip(weights, single, strict=True)), rtol=1e-12, atol=1e-12)
    assert (mean - sum(single)).norm() > 0.01 * sum(single).norm()


@pytest.mark.parametrize(
    "moving",
    [
        {"join": 0.5, "leave": 0.4, "dropout": 0.2},
        {"burst": 0.4, "burst_rounds": 3, "burst_dropout": 0.6, "slow": 0.5, "late": 0.5},
    ],
)
def test_a_run_with_a_moving_population_resumes_to_the_same_bits(tmp_path, moving):
    options = {"rounds": 6, "checkpoint_every": 2, "population": moving}
    federation = ref.federation((5, 3, 8, 2))
    whole = coterie.train(federation, out=tmp_path / "whole", **options)

    stops = iter([False, False, False, True])
    recipe = Recipe.parse({"run": {"rounds": 6, "checkpoint_every": 2}, "population": options["population"]})
    with pytest.raises(KeyboardInterrupt):
        Training(recipe, federation, tmp_path / "part").play(should_stop=lambda: next(stops))
    resumed = Training(recipe, federation, tmp_path / "part", resume=True).play()
    for name, value in whole.shared.items():
        assert torch.equal(value, resumed.shared[name])
    cut = [(record.round, record.cohort, record.train_loss) for record in resumed.history]
    assert cut == [(record.round, record.cohort, record.train_loss) for record in whole.history]
