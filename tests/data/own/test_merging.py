"""Different clients, classes and columns stay different, and no row is dropped; otherwise the data are refused."""

from decimal import Decimal

import numpy as np
import pytest

from coterie.data.federation import Federation
from coterie.errors import UserError
from data.own.make import write_csv

X = [[1.0], [2.0], [3.0], [4.0]]


def objects(*values):
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def table(**columns):
    four = {"site": ["a", "a", "b", "b"], "y": [0, 1, 0, 1], "age": [1.0, 2.0, 3.0, 4.0]}
    return Federation.from_table({**four, **columns}, test=0)


@pytest.mark.parametrize(
    "site",
    [
        np.array([1e19, 1e19, 2e19, 2e19]),
        np.array([1, 1, 2.0**53, 2.0**53 + 1]),
        np.array([2**24, 2**24, 2**24 + 1, 2**24 + 1], dtype=np.float32),
        np.array([0.5, 0.5, np.inf, np.inf]),
        objects("a", "a", 1e19, 2e19),
    ],
)
def test_clients_that_a_float_cannot_tell_apart_are_refused(site):
    with pytest.raises(UserError, match=r"the table row [02]: column 'site' has a number that is too large"):
        table(site=site)


@pytest.mark.parametrize(
    ("site", "ids"),
    [
        ([2**60, 2**60, 2**60 + 1, 2**60 + 1], (str(2**60), str(2**60 + 1))),
        (objects(10**30, 10**30, 10**30 + 1, 10**30 + 1), (str(10**30), str(10**30 + 1))),
        ([-0.0, 0.0, 0.5, 0.5], ("0.0", "0.5")),
        (objects(3.0, 3, "x", "x"), ("3", "x")),
        (objects(Decimal("1.10"), Decimal("1.10"), Decimal("2"), Decimal("2")), ("1.10", "2")),
    ],
)
def test_other_numbers_are_kept_apart(site, ids):
    federation = table(site=site)
    assert federation.ids == ids
    assert federation.sizes().tolist() == [2, 2]


@pytest.mark.parametrize("site", [[1, 1, "1", "1"], objects(1, 1, "1", "1")])
def test_a_number_and_its_text_are_not_one_client(site):
    with pytest.raises(UserError, match=r"the table row 2: column 'site' reads the same as a value of another type"):
        table(site=site)


@pytest.mark.parametrize("site", [["a", "a", "a\0", "a\0"], ["a", "a", "b", "b" * 1001]])
def test_text_that_an_array_would_cut_is_refused(site):
    with pytest.raises(UserError, match=r"the table row [23]: column 'site' has a zero character or more than 1,000"):
        table(site=objects(*site))


def test_a_zero_character_in_a_list_or_a_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="row 2: column 'site' has a zero character"):
        table(site=["a", "a", "a\0", "a\0"])
    (tmp_path / "a.csv").write_text("site,y,age\na,0,1\na\0,1,2\n")
    with pytest.raises(UserError, match=r"a\.csv line 3 has a zero character"):
        Federation.from_table(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["site", "y", "age"])
def test_a_short_column_is_refused(name):
    with pytest.raises(UserError, match=r"the table: column '(site|y|age)' has \d rows, but column 'site' has \d"):
        table(**{name: [1, 2]})


def test_a_short_column_of_a_dataset_is_refused():
    class Dataset:
        column_names = ("site", "y", "age")

        def __getitem__(self, name):
            return [1, 2] if name == "site" else [1, 2, 3, 4]

    with pytest.raises(UserError, match="the dataset: column 'y' has 4 rows, but column 'site' has 2"):
        Federation.from_datasets(Dataset(), client="site", label="y", features=["age"])


@pytest.mark.parametrize(
    "y",
    [
        [1e20, 2e20, 1e20, 2e20],
        [2.0**53, 2.0**53 + 2, 0.0, 0.0],
        np.array([2**63, 2**64 - 1, 0, 0], dtype=np.uint64),
        np.array([2**24, 2**24 + 1, 0, 0], dtype=np.float32),
        objects(2**53 + 1, 2.0, 2**53, 2.0),
        [10**30, 10**30 + 1, 0, 0],
    ],
)
def test_labels_that_would_be_merged_are_refused(y):
    with pytest.raises(UserError, match=r"client 'anna': y.* (has a (label|number) that is too large)"):
        Federation.from_arrays({"anna": (X, y)})
    with pytest.raises(UserError, match=r"client 'a': the table.* (has a (label|number) that is too large)"):
        table(y=y)


def test_large_labels_that_fit_are_kept_apart():
    assert table(y=[2**60, 2**60 + 1, 2**60, 2**60 + 1]).labels == (2**60, 2**60 + 1)


@pytest.mark.parametrize("y", [[1, "1", 1, "1"], [1.5, "1.5", 1.5, "1.5"], objects(1, "1", 1, "1")])
def test_a_number_and_its_text_are_not_one_class(y):
    for build in (lambda: Federation.from_arrays({"anna": (X, y)}), lambda: table(y=y)):
        with pytest.raises(UserError, match="mixes labels of different types"):
            build()


def test_labels_that_differ_by_a_zero_character_are_refused():
    with pytest.raises(UserError, match="client 'anna': y row 1 has a zero character"):
        Federation.from_arrays({"anna": (X, ["a", "a\0", "a", "a\0"])})


def test_underscores_of_text_labels_are_not_digits(tmp_path):
    (tmp_path / "a.csv").write_text("site,y,age\na,10,1\na,1_0,2\n")
    assert Federation.from_table(tmp_path / "a.csv", test=0).labels == ("10", "1_0")


def test_large_labels_of_a_file_are_refused_not_rounded(tmp_path):
    path = write_csv(tmp_path / "a.csv", [{"site": "a", "y": 2**53 + i, "age": i} for i in range(2)])
    with pytest.raises(UserError, match=r"client 'a': \S*a\.csv line 2 has a label that is too large"):
        Federation.from_table(path)


class Frame:
    """The part of a data frame that Coterie uses, with the columns of an array."""

    def __init__(self, array, columns):
        self.array, self.columns = array, columns

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype=dtype)

    def __getitem__(self, name):
        return self.array[:, self.columns.index(name)]


@pytest.mark.parametrize("columns", [["site", "y", "age", "age"], ["site", "y", "1", 1]])
def test_two_columns_with_the_same_name_are_refused(columns):
    frame = Frame(np.ones((4, 4)), columns)
    with pytest.raises(UserError, match=r"the table has more than one column '(age|1)'"):
        Federation.from_table(frame)


def test_a_feature_is_named_once():
    with pytest.raises(UserError, match="`features` names column 'age' twice"):
        Federation.from_table({"site": ["a"], "y": [0], "age": [1.0]}, features=["age", "age"])


def test_frames_of_several_types_are_numbers():
    mixed = Frame(np.array([[1, True, 0.5], [2, False, np.float32(1.5)]], dtype=object), ["n", "flag", "dose"])
    federation = Federation.from_arrays({"anna": (mixed, objects(1, 2))}, test=0)
    assert federation.x.tolist() == [[1, 1, 0.5], [2, 0, 1.5]]
    assert federation.labels == (1, 2)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "has no value"),
        (type("NAType", (), {})(), "has no value"),
        ("7", "is not a number"),
        (float("nan"), r"has no value|is not finite"),
    ],
)
def test_a_missing_value_of_a_frame_names_the_column(value, reason):
    frame = Frame(np.array([[1, 2.0], [3, value]], dtype=object), ["age", "dose"])
    with pytest.raises(UserError, match=f"client 'anna': x row 1, column 'dose' ({reason})"):
        Federation.from_arrays({"anna": (frame, [0, 1])})


def test_targets_and_labels_without_a_value_are_refused():
    with pytest.raises(UserError, match="client 'anna': y row 2 has no label"):
        Federation.from_arrays({"anna": (X, objects(1, 2, None, 1))})
    with pytest.raises(UserError, match="client 'anna': y row 2 has no value"):
        Federation.from_arrays({"anna": (X, objects(1, 2, None, 1))}, regression=True)


@pytest.mark.parametrize("regression", [False, True])
def test_masked_values_are_refused(regression):
    x = np.ma.array(np.ones((4, 2)), mask=np.eye(4, 2) > 0)
    y = np.ma.array([0, 1, 0, 1], mask=[0, 0, 1, 0])
    with pytest.raises(UserError, match="client 'anna': x row 0 is masked; fill it in"):
        Federation.from_arrays({"anna": (x, [0, 1, 0, 1])}, regression=regression)
    with pytest.raises(UserError, match="client 'anna': y row 2 is masked; fill it in"):
        Federation.from_arrays({"anna": (X, y)}, regression=regression)
    with pytest.raises(UserError, match="the table row 2: column 'y' is masked"):
        table(y=y)
    assert Federation.from_arrays({"anna": (np.ma.array(X), np.ma.array([0, 1, 0, 1]))}).labels == (0, 1)


@pytest.mark.parametrize("shape", [(4, 0), (4, 3, 0)])
def test_rows_without_features_are_refused(shape):
    with pytest.raises(UserError, match=r"client 'anna': x has no columns, got shape \(4"):
        Federation.from_arrays({"anna": (np.ones(shape), [0, 1, 0, 1])})


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(UserError, match=r"the name of client 'a\\ud800' has characters that no file can store"):
        Federation.from_arrays({"a\ud800": (X, [0, 1, 0, 1])})
    with pytest.raises(UserError, match="a label has characters that no file can store"):
        Federation.from_arrays({"a": (X, ["p", "q\udfff", "p", "p"])})


def test_new_users_are_told_apart_by_every_character():
    federation = Federation.from_arrays({"a": (X, [0, 1, 0, 1]), "a\0": (X, [0, 1, 0, 1])}, new=["a"])
    assert federation.is_new.tolist() == [True, False]


def test_long_floats_do_not_become_infinite():
    if np.finfo(np.longdouble).max == np.finfo(np.float64).max:
        pytest.skip("long floats are not longer here")
    with pytest.raises(UserError, match="client 'anna': x row 0 is not finite"):
        Federation.from_arrays({"anna": (np.full((4, 1), np.longdouble("1e400")), [0, 1, 0, 1])})


def test_columns_of_other_kinds_are_refused():
    for bad in (np.array([b"\xff", b"a", b"a", b"a"]), np.ones((4, 2)), np.ones(4, dtype=complex)):
        for name in ("site", "y"):
            with pytest.raises(UserError, match=f"the table: column '{name}' must have one number or text in each row"):
                table(**{name: bad})
    with pytest.raises(UserError, match="column 'site' is a single value"):
        table(site="a")
