from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie import streams
from coterie.errors import UserError
from coterie.server.participation import Fixed, Independent, Participation, Unequal, Uniform, by_size

I = 12  # noqa: E741
DRAWS = 8000

PROCESSES = [Fixed(1), Fixed(5), Fixed(I), Independent(0.05), Independent(0.4), Independent(1.0), Uniform(2, 9)]


def draws(process: Participation, num_clients: int = I, number: int = DRAWS) -> list[tuple[list[int], float]]:
    drawn = (process.draw(num_clients, streams.generator(0, "cohort", index)) for index in range(1, number + 1))
    return [(cohort.tolist(), r) for cohort, r in drawn]


@settings(deadline=None)
@given(st.sampled_from(PROCESSES), st.integers(0, 2**32))
def test_a_cohort_is_increasing_places_among_the_clients(process: Participation, seed: int) -> None:
    cohort, _ = process.draw(I, np.random.default_rng(seed))
    assert all(0 <= place < I for place in cohort)
    assert all(first < second for first, second in pairwise(cohort.tolist()))


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_the_same_stream_gives_the_same_cohort(process: Participation) -> None:
    first, second = (process.draw(I, streams.generator(3, "cohort", 7)) for _ in range(2))
    assert first[0].tolist() == second[0].tolist()
    assert first[1] == second[1]


@pytest.mark.parametrize("r", [1, 5, I])
def test_a_fixed_cohort_has_its_size(r: int) -> None:
    assert {(len(cohort), announced) for cohort, announced in draws(Fixed(r), number=100)} == {(r, r)}


def test_all_clients_are_a_cohort() -> None:
    assert draws(Fixed(I), number=1)[0][0] == list(range(I))
    assert draws(Independent(1.0), number=1)[0][0] == list(range(I))


def test_a_uniform_cohort_has_each_size_equally_often() -> None:
    sizes = [len(cohort) for cohort, _ in draws(Uniform(2, 9))]
    counts = np.bincount(sizes, minlength=10)[2:]
    p = 1 / 8
    assert counts.sum() == DRAWS
    assert np.abs(counts - DRAWS * p).max() < 5 * (DRAWS * p * (1 - p)) ** 0.5


def test_an_independent_cohort_has_a_binomial_size_and_may_be_empty() -> None:
    drawn = draws(Independent(0.05))
    sizes = np.array([len(cohort) for cohort, _ in drawn])
    empty, variance = 0.95**I, I * 0.05 * 0.95
    assert abs((sizes == 0).mean() - empty) < 5 * (empty * (1 - empty) / DRAWS) ** 0.5
    # The variance of a sample variance is about (kurtosis - 1) variance^2 / n; a kurtosis of 5 is more than there is.
    assert abs(sizes.var() - variance) < 5 * variance * (4 / DRAWS) ** 0.5
    assert [r for _, r in drawn] == pytest.approx([I * 0.05] * DRAWS)


def test_clients_of_an_independent_cohort_take_part_independently() -> None:
    present = np.zeros((DRAWS, I))
    for row, (cohort, _) in zip(present, draws(Independent(0.4)), strict=True):
        row[cohort] = 1
    correlation = np.corrcoef(present.T)[np.triu_indices(I, 1)]
    assert np.abs(correlation).max() < 5 / DRAWS**0.5


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_every_client_is_weighted_to_one_on_average(process: Participation) -> None:
    """E[1{i in cohort} / (r/I)] = 1, from which the unbiasedness of PFLEGO's gradient follows."""
    weights = np.zeros((DRAWS, I))
    for row, (cohort, r) in zip(weights, draws(process), strict=True):
        row[cohort] = I / r
    error = 5 * weights.std(axis=0, ddof=1) / DRAWS**0.5
    assert (np.abs(weights.mean(axis=0) - 1) <= error + 1e-12).all()


@pytest.mark.parametrize("r", [2, 5, 9])
def test_given_the_announced_r_every_client_takes_part_with_probability_r_over_i(r: int) -> None:
    cohorts = [cohort for cohort, announced in draws(Uniform(2, 9)) if announced == r]
    p = r / I
    frequency = np.bincount(np.concatenate(cohorts), minlength=I) / len(cohorts)
    assert len(cohorts) > 500
    assert {len(cohort) for cohort in cohorts} == {r}
    assert np.abs(frequency - p).max() < 5 * (p * (1 - p) / len(cohorts)) ** 0.5


@pytest.mark.parametrize(
    ("process", "key"),
    [
        (
            Fixed(I + 1),
            rf"run\.clients_per_round = {I + 1}, but only {I} clients can be drawn; lower it, or omit it",
        ),
        (Uniform(3, I + 1), rf"run\.clients_range = \[3, {I + 1}\] .* at most {I}, the number of clients"),
        (Uniform(5, 3), r"run\.clients_range = \[5, 3\] must be increasing"),
    ],
    ids=str,
)
def test_a_cohort_that_cannot_be_drawn_is_refused_by_the_name_of_its_key(process: Participation, key: str) -> None:
    with pytest.raises(UserError, match=key):
        process.check(I)


@pytest.mark.parametrize("process", [Fixed(I), Independent(1.0), Uniform(1, I), Uniform(I, I)], ids=str)
def test_the_largest_cohort_is_accepted(process: Participation) -> None:
    process.check(I)
    cohort, _ = process.draw(I, np.random.default_rng(0))
    assert len(cohort) <= I


@pytest.mark.parametrize("r", [0, -1, 2.5])
def test_a_cohort_of_fewer_than_one_is_refused(r: float) -> None:
    with pytest.raises(UserError, match=f"^r = {r}: "):
        Fixed(r)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"^low = {r}: "):
        Uniform(r, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("pi", [0.0, -0.1, 1.01, float("nan")])
def test_a_probability_out_of_range_is_refused(pi: float) -> None:
    with pytest.raises(UserError, match=r"^pi = "):
        Independent(pi)


@pytest.mark.parametrize("process", [Fixed(100), Independent(1e-4), Uniform(50, 150)], ids=str)
def test_a_million_clients_are_no_trouble(process: Participation) -> None:
    process.check(1_000_000)
    drawn = draws(process, 1_000_000, number=20)
    assert all(len(set(cohort)) == len(cohort) for cohort, _ in drawn)
    assert 1_000_000 > max(max(cohort) for cohort, _ in drawn) > 900_000
    assert min(min(cohort) for cohort, _ in drawn) < 100_000
    assert np.mean([r for _, r in drawn]) == pytest.approx(100, abs=35)


@pytest.mark.parametrize(
    ("sizes", "r", "pi"),
    [
        ([1, 2, 3, 4], 1, [0.1, 0.2, 0.3, 0.4]),
        ([1, 1, 8], 1, [0.1, 0.1, 0.8]),
        ([1, 1, 8], 2, [0.5, 0.5, 1.0]),  # 8/5 would be more than 1
        ([1, 3, 8, 88], 3, [0.25, 0.75, 1.0, 1.0]),  # the first cut to 1 makes another one necessary
        ([5, 5, 0], 2, [1.0, 1.0, 0.0]),
        ([2, 7], 2, [1.0, 1.0]),
    ],
)
def test_probabilities_by_size_by_hand(sizes: list[int], r: int, pi: list[float]) -> None:
    assert by_size(np.array(sizes), r).tolist() == pytest.approx(pi, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30), st.data())
def test_probabilities_by_size_add_up_to_the_expected_cohort(sizes: list[int], data: st.DataObject) -> None:
    r = data.draw(st.integers(1, len(sizes)))
    pi = by_size(np.array(sizes), r)
    assert pi.sum() == pytest.approx(r)
    assert ((pi > 0) & (pi <= 1)).all()
    rates = (pi / sizes)[pi < 1]
    assert len(rates) == 0 or rates == pytest.approx(rates[0])


def test_clients_with_unequal_probabilities_take_part_that_often_and_independently() -> None:
    pi = np.linspace(0.05, 1, I)
    process, present = Unequal(pi), np.zeros((DRAWS, I))
    for row, (cohort, r) in zip(present, draws(process), strict=True):
        row[cohort] = 1
        assert r == pytest.approx(pi.sum())
    assert (np.abs(present.mean(axis=0) - pi) <= 5 * (pi * (1 - pi) / DRAWS) ** 0.5).all()
    correlation = np.corrcoef(present[:, :-1].T)[np.triu_indices(I - 1, 1)]
    assert np.abs(correlation).max() < 5 / DRAWS**0.5


def test_absent_clients_leave_the_probabilities_of_the_others_as_they_are() -> None:
    process = Unequal(np.array([0.5, 0.1, 1.0, 0.2]))
    among = process.among(np.array([2, 3]))
    cohort, r = among.draw(2, np.random.default_rng(0))
    assert r == pytest.approx(1.2)
    assert 0 in cohort.tolist()
    assert process.chances(np.array([3, 2])).tolist() == [0.2, 1.0]
    assert Fixed(2).chances(np.array([3])) is None
