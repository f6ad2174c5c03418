import numpy as np
import pytest

from coterie.data.examples import Examples
from coterie.data.partition.feature_clusters import FeatureClusters
from coterie.errors import UserError

CENTRES = np.array([[0, 0], [100, 0], [0, 100], [100, 100]])


def blobs(per_blob, per_blob_test, seed=0):
    """Return four clusters far apart. The rows of cluster b have the classes b and (b + 1) % 4."""
    rng = np.random.default_rng(seed)
    blob, blob_test = np.arange(4 * per_blob) % 4, np.arange(4 * per_blob_test) % 4
    x, x_test = (CENTRES[each] + rng.normal(size=(len(each), 2)) for each in (blob, blob_test))
    y, y_test = ((each + np.arange(len(each)) // 4 % 2) % 4 for each in (blob, blob_test))
    return Examples(x.reshape(-1, 1, 2), y, x_test.reshape(-1, 1, 2), y_test, (0, 1, 2, 3)), blob, blob_test


@pytest.mark.parametrize("seed", range(5))
def test_heaps_far_apart_are_the_clients(seed):
    examples, blob, blob_test = blobs(30, 7)
    result = FeatureClusters(clients=4).assign(examples, np.random.default_rng(seed))
    found = [set(blob[rows]) for rows in result.train]
    assert sorted(map(tuple, found)) == [(0,), (1,), (2,), (3,)]
    assert [set(blob_test[rows]) for rows in result.test] == found


def test_a_test_row_goes_to_the_nearest_centre_that_trains_on_its_class():
    examples, blob, _ = blobs(30, 0)
    x_test = np.array([[[5.0, 20.0]], [[5.0, 20.0]]])  # nearest to cluster 0, then 2, then 1
    examples = examples._replace(
        x_test=x_test, y_test=np.array([0, 2])
    )  # cluster 0 has classes 0, 1; cluster 2 has 2, 3
    result = FeatureClusters(clients=4).assign(examples, np.random.default_rng(0))
    blob_of_test = {
        int(row): int(blob[train[0]]) for train, test in zip(result.train, result.test, strict=True) for row in test
    }
    assert blob_of_test == {0: 0, 1: 2}


def test_fewer_distinct_inputs_than_clients_is_an_error():
    examples, _, _ = blobs(30, 5)
    examples = examples._replace(x_train=np.round(examples.x_train, -2))
    assert len(FeatureClusters(clients=4).assign(examples, np.random.default_rng(0)).train) == 4
    with pytest.raises(UserError, match=r"partition\.clients = 5: the inputs form only 4 clusters; lower it"):
        FeatureClusters(clients=5).assign(examples, np.random.default_rng(0))


def test_inputs_of_whole_numbers_do():
    examples, _, _ = blobs(30, 5)
    whole = examples._replace(x_train=examples.x_train.astype(np.uint8), x_test=examples.x_test.astype(np.uint8))
    assert all(map(len, FeatureClusters(clients=4).assign(whole, np.random.default_rng(0)).train))
