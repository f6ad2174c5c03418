import numpy as np

from coterie.data.sets.split import split

STRATA = np.array([3, 1, 1, 3, 1, 1, 3, 3, 7, 1, 1, 1, 1])


def test_every_row_falls_on_one_side_with_the_same_mix() -> None:
    train, test = split(STRATA, share=0.25)
    assert np.sort(np.concatenate([train, test])).tolist() == list(range(len(STRATA)))
    assert np.bincount(STRATA[test], minlength=8).tolist() == [0, 2, 0, 1, 0, 0, 0, 0]  # of 8, 4 and 1


def test_the_split_never_changes() -> None:
    assert split(STRATA, share=0.25)[1].tolist() == [2, 7, 10]
    assert split(np.array([], dtype=np.int64), share=0.25)[0].tolist() == []
