import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.examples import Assignment
from coterie.data.partition.classes import Classes
from partitions import labelled


class Case:
    """A partition and data that it can divide."""

    def __init__(self, clients: int, K: int, new_users: float, num_classes: int, spread: int, seed: int) -> None:
        self.partition = Classes(clients=clients, classes_per_client=K, new_users=new_users)
        self.clients, self.K, self.num_classes, self.seed = clients, K, num_classes, seed
        self.num_existing = clients - int(new_users * clients)
        rng = np.random.default_rng(seed)
        # At least as many training rows of each class as clients, so that every client gets some.
        self.y_train = rng.permutation(
            np.repeat(np.arange(num_classes), clients + rng.integers(spread, size=num_classes))
        )
        self.y_test = rng.integers(num_classes, size=rng.integers(spread * num_classes))

    def assign(self) -> Assignment:
        return self.partition.assign(
            labelled(self.y_train, self.y_test, self.num_classes), np.random.default_rng(self.seed)
        )

    def __repr__(self) -> str:
        return f"Case({self.partition}, num_classes={self.num_classes}, seed={self.seed})"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_classes = draw(st.integers(1, 12))
    K = draw(st.integers(1, num_classes))
    existing = draw(st.integers(-(-num_classes // K), 30))  # at least the number that can cover all classes
    new = draw(st.integers(0, 10))
    clients = existing + new
    share = (new + 0.5) / clients if new else 0.0
    return Case(clients, K, min(share, 0.999), num_classes, draw(st.integers(1, 60)), draw(st.integers(0, 2**32 - 1)))


@settings(deadline=None)
@given(cases())
def test_every_row_is_dealt_exactly_once_and_sorted(case: Case) -> None:
    result = case.assign()
    for rows, y in ((result.train, case.y_train), (result.test, case.y_test)):
        assert len(rows) == case.clients
        assert all((np.diff(mine) > 0).all() for mine in rows)
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(len(y)))


@settings(deadline=None)
@given(cases())
def test_each_client_has_K_classes_and_rows_of_no_other(case: Case) -> None:
    result = case.assign()
    for train, test, own in zip(result.train, result.test, result.classes, strict=True):
        assert len(own) == case.K
        assert (np.diff(own) > 0).all()
        assert set(case.y_train[train]) == set(own)
        assert set(case.y_test[test]) <= set(own)


@settings(deadline=None)
@given(cases())
def test_every_class_is_held_by_an_existing_client(case: Case) -> None:
    result = case.assign()
    held = np.concatenate([own for own, new in zip(result.classes, result.is_new, strict=True) if not new])
    assert set(held) == set(range(case.num_classes))
    assert (~result.is_new).sum() == case.num_existing


@settings(deadline=None)
@given(cases())
def test_holders_of_a_class_differ_by_at_most_one_row(case: Case) -> None:
    result = case.assign()
    for rows, y in ((result.train, case.y_train), (result.test, case.y_test)):
        for label in range(case.num_classes):
            shares = [(y[mine] == label).sum() for mine, own in zip(rows, result.classes, strict=True) if label in own]
            assert max(shares) - min(shares) <= 1
            assert shares == sorted(shares, reverse=True)


@settings(deadline=None)
@given(cases())
def test_the_same_seed_gives_the_same_assignment(case: Case) -> None:
    for one, other in zip(case.assign(), case.assign(), strict=True):
        rows, others = ([each] if isinstance(each, bool) else each for each in (one, other))
        assert all(np.array_equal(a, b) for a, b in zip(rows, others, strict=True))
