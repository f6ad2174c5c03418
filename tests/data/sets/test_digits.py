import numpy as np

from coterie.data.sets.digits import Digits


def test_all_images_are_there_as_unit_interval_pixels() -> None:
    data = Digits().load()
    assert data.x_train.shape == (1347, 8, 8)
    assert data.x_test.shape == (450, 8, 8)
    assert data.x_train.dtype == data.x_test.dtype == np.float32
    assert data.y_train.dtype == data.y_test.dtype == np.int64
    assert (data.x_train.min(), data.x_train.max()) == (0.0, 1.0)
    assert data.labels == tuple("0123456789")


def test_classes_keep_their_published_counts_and_proportions() -> None:
    data = Digits().load()
    train, test = np.bincount(data.y_train, minlength=10), np.bincount(data.y_test, minlength=10)
    assert (train + test).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.abs(test - (train + test) / 4).max() <= 1


def test_the_split_never_changes() -> None:
    first, second = Digits().load(), Digits().load()
    for one, other in zip(first[:4], second[:4], strict=True):
        np.testing.assert_array_equal(one, other)
    assert first.y_test[:10].tolist() == [2, 0, 4, 9, 4, 1, 2, 4, 6, 7]
