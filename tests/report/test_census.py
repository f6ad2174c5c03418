import numpy as np
import pytest

from coterie.data.examples import Groups
from coterie.data.ragged import Ragged
from coterie.report import census
from data.sets.held import examples, federation, holding


def test_classes_are_counted_for_each_client() -> None:
    fed = federation([0, 1, 1, 2, 0, 2, 2], [[0, 2, 1], [6, 3], [4]], ("a", "b", "c", "d"))
    assert census.classes_per_client(fed).tolist() == [[1, 2, 0, 0], [0, 0, 2, 0], [1, 0, 0, 0]]


def test_tokens_are_counted_at_every_position_but_padding() -> None:
    y = [[2, 2, 0], [1, -1, -1], [0, 1, -1]]
    fed = federation(y, [[0, 2], [1]], ("a", "b", " "))
    assert census.asked(fed) is census.TOKEN
    assert census.classes_per_client(fed).tolist() == [[2, 1, 2], [0, 1, 0]]
    assert census.variety(fed).tolist() == [3, 1], "what it trains on, as the label set is the alphabet's"
    train, test = census.class_totals(examples(y, y[:2], fed.labels))
    assert (train.tolist(), test.tolist()) == ([2, 2, 2], [1, 1, 2])
    assert census.class_map(fed, 9, 9).classes == ["a", "b", "' '"]


def test_the_number_of_classes_is_that_of_the_label_set() -> None:
    fed = holding([[3, 0, 0], [1, 1, 0]], classes=Ragged.of([np.array([0, 2]), np.array([0, 1, 2])]))
    assert census.ranges(fed) == {"train examples": (2, 2.5, 3), "test examples": (0, 0, 0), "classes": (2, 2.5, 3)}


def test_clients_are_ordered_by_main_class_then_mean_class_and_new_users_last() -> None:
    counts = [
        [0, 2, 9],  # c0: class 2
        [1, 5, 3],  # c1: class 1, and more of 2 than of 0
        [9, 0, 0],  # c2: class 0, but new
        [4, 5, 0],  # c3: class 1, and more of 0
        [5, 5, 0],  # c4: classes 0 and 1 alike
        [0, 0, 1],  # c5: class 2, and nothing else
        [5, 0, 4],  # c6: class 0, though its mean is above that of c3
    ]
    drawn = census.class_map(holding(counts, new=[2]), 7, 3)
    assert drawn.clients == ["c4", "c6", "c3", "c1", "c0", "c5", "c2"]
    assert drawn.is_new == [False] * 6 + [True]
    assert drawn.counts.tolist() == [counts[int(name[1:])] for name in drawn.clients]
    assert drawn.caption == "all 7 clients, ordered by main class, new users last"


def test_what_is_too_much_is_sampled_and_put_together() -> None:
    counts = np.diag(np.arange(1, 8))
    drawn = census.class_map(holding(counts), 3, 3)
    assert drawn.clients == ["c0", "c3", "c6"]
    assert drawn.classes == ["0 to 2", "3 to 5", "6"]
    assert drawn.counts.tolist() == [[1, 0, 0], [0, 4, 0], [0, 0, 7]]
    assert drawn.caption == "3 classes per column, every 3rd of 7 clients, ordered by main class"


@pytest.mark.parametrize(
    ("step", "word"), [(2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st"), (113, "113th")]
)
def test_every_nth_is_in_words(step: int, word: str) -> None:
    drawn = census.class_map(holding(np.ones((2 * step, 1), dtype=int)), 2, 1)
    assert drawn.clients == ["c0", f"c{step}"]
    assert drawn.caption.startswith(f"every {word} of {2 * step} clients")


def test_bins_of_whole_numbers_have_both_their_ends() -> None:
    bins = census.whole_bins(np.array([1, 2, 5, 6, 9, 9, 9]), 4)
    assert bins.names == ["1 to 3", "4 to 6", "7 to 9"]
    assert bins.tally().tolist() == [2, 2, 3]
    assert census.whole_bins(np.array([7, 7]), 4).names == ["7"]
    assert census.whole_bins(np.array([998, 1001]), 9).names == ["998", "999", "1,000", "1,001"]


def test_bins_of_real_numbers_are_those_of_numpy() -> None:
    values = np.array([0.0, 0.25, 0.5, 0.5, 1.0, 1.0])
    bins = census.real_bins(values, 4)
    assert bins.tally().tolist() == np.histogram(values, 4)[0].tolist() == [1, 1, 2, 2]
    assert bins.names == ["0.00 to 0.25", "0.25 to 0.50", "0.50 to 0.75", "0.75 to 1.00"]
    assert len(set(census.real_bins(1e6 + values, 40).names)) == 40, "no two bins have one name"
    assert census.real_bins(np.full(3, 2.0), 2).tally().sum() == 3


def test_targets_have_a_mean_and_deciles() -> None:
    y = np.concatenate([np.arange(11.0), [3.0, 5.0], [-1.0]])
    fed = federation(y, [np.arange(11), [11, 12], [13]], (), new=[0])
    drawn = census.target_ranges(fed, 9)
    assert drawn.clients == ["c2", "c1", "c0"]
    assert drawn.mean.tolist() == [-1, 4, 5]
    np.testing.assert_allclose(drawn.low, [-1, 3.2, 1])
    np.testing.assert_allclose(drawn.high, [-1, 4.8, 9])
    assert drawn.caption == "all 3 clients, ordered by mean target, new users last"
    assert list(census.ranges(fed)) == ["train examples", "test examples"]


def test_facts_of_a_graph_and_of_targets() -> None:
    edges = np.array([[0, 1, 1, 2], [1, 0, 2, 1]])
    groups = Groups(np.zeros(2, int), np.zeros(1, int), ("a",))
    graph = examples([0, 1], [0], ("x", "y"), edges=edges, groups=groups)
    assert census.facts(graph) == {"train": 2, "test": 1, "shape": "2", "classes": 2, "groups": 1, "edges": 2}
    assert census.facts(examples([0.5], [1.5], ())) == {"train": 1, "test": 1, "shape": "2", "groups": None}
