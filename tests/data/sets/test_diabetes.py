import numpy as np

from coterie.data.partition.feature_clusters import FeatureClusters
from coterie.data.sets.diabetes import Diabetes


def test_a_quarter_is_tested_on() -> None:
    data = Diabetes().load()
    assert (data.x_train.shape, data.x_test.shape) == ((332, 10), (110, 10))
    assert {part.dtype for part in data[:4]} == {np.dtype(np.float32)}
    assert (data.labels, data.has_classes) == ((), False)


def test_the_scale_is_that_of_the_training_examples() -> None:
    data = Diabetes().load()
    for train, test in ((data.x_train, data.x_test), (data.y_train, data.y_test)):
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(train.std(axis=0), 1, rtol=1e-6)
        assert (np.abs(test.mean(axis=0)) > 1e-6).all()


def test_the_published_fit() -> None:
    """Least squares on all 442 patients has R² = 0.518, and the body mass index has the largest correlation."""
    data = Diabetes().load()
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    with_ones = np.column_stack([x, np.ones(442)]).astype(np.float64)
    left = y - with_ones @ np.linalg.lstsq(with_ones, y, rcond=None)[0]
    assert round(1 - left.var() / y.var(), 3) == 0.518
    correlation = np.corrcoef(x.T, y)[-1, :-1]
    assert (correlation.argmax(), round(correlation.max(), 3)) == (2, 0.586)


def test_the_split_never_changes() -> None:
    first, second = Diabetes().load(), Diabetes().load()
    assert all(map(np.array_equal, first[:4], second[:4]))


def test_its_usual_clients() -> None:
    assert Diabetes.usual_partition == "feature-clusters"
    data = Diabetes().load()
    result = FeatureClusters().assign(data, np.random.default_rng(0))
    assert len(result.train) == 10
    assert min(map(len, result.train)) > 0
    assert sum(map(len, result.train)) == 332
    assert sum(map(len, result.test)) == 110
    assert {len(own) for own in result.classes} == {0}
