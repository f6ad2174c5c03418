"""Mistakes that users make in tables, and the errors they get."""

import sys
import time
import tracemalloc

import numpy as np
import pytest

from coterie.data.federation import Federation
from coterie.data.own import pool
from coterie.data.own.split import split as split_rows
from coterie.errors import UserError
from data.own.make import clients, rows, write_csv

GOOD = "site,y,age\nanna,0,31\nanna,1,40.5\nben,1,22\nben,1,25\n"


def read(tmp_path, text, **options):
    path = tmp_path / "wards.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return Federation.from_table(path, **options)


def test_the_good_table_is_good(tmp_path):
    federation = read(tmp_path, GOOD, test=0)
    assert federation.ids == ("anna", "ben")
    assert federation.x.tolist() == [[31], [40.5], [22], [25]]
    assert federation.labels == (0, 1)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + GOOD,
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\n\n"),
        GOOD.replace(",", " , "),
        GOOD.replace("31", '"31"'),
        GOOD.replace("anna,1,", "anna,1.0,"),
    ],
    ids=["byte order mark", "windows", "blank lines", "spaces", "quotes", "a float among labels"],
)
def test_spellings_of_the_same_table(tmp_path, text):
    assert read(tmp_path, text).fingerprint() == read(tmp_path, GOOD).fingerprint()


def test_columns_may_be_called_anything(tmp_path):
    federation = read(tmp_path, GOOD.replace("site", "ward").replace("y,", "kind,"), client="ward", label="kind")
    assert federation.fingerprint() == read(tmp_path, GOOD).fingerprint()


def test_labels_are_numbers_only_if_all_are(tmp_path):
    assert read(tmp_path, GOOD.replace("ben,1,22", "ben,none,22")).labels == ("0", "1", "none")


def test_clients_may_be_numbers(tmp_path):
    columns = {"y": [0, 1], "age": [1.0, 2.0]}
    assert read(tmp_path, GOOD.replace("anna", "10")).ids == ("10", "ben")
    assert Federation.from_table({"site": [3, 10], **columns}).ids == ("10", "3")
    assert Federation.from_table({"site": [3.0, 10.0], **columns}).ids == ("10", "3")


def test_columns_that_are_not_features_are_left_out(tmp_path):
    text = GOOD.replace("age", "age,name").replace("\nanna,0,31", "\nanna,0,31,Bo").replace("40.5", "40.5,Cy")
    text = text.replace("22", "22,").replace("25", "25,Di")
    assert read(tmp_path, text, features=["age"]).fingerprint() == read(tmp_path, GOOD).fingerprint()


BAD = {
    "a column that is not there": (
        GOOD,
        {"client": "sites"},
        r"wards.csv has no column 'sites' \(did you mean 'site'\?\); available: site, y, age$",
    ),
    "a label that is not there": (GOOD, {"label": "class"}, "no column 'class'"),
    "a feature that is not there": (GOOD, {"features": ["agee"]}, "no column 'agee'"),
    "a split that is not there": (GOOD, {"split": "part"}, "no column 'part'"),
    "no features": ("site,y\na,1\n", {}, "has no feature columns"),
    "the label as a feature": (GOOD, {"features": ["age", "y"]}, "column 'y' is the client, label or split and cannot"),
    "text": (GOOD.replace("22", "old"), {}, r"^client 'ben': \S*wards.csv line 4: column 'age' is not a number"),
    "a gap": (GOOD.replace("40.5", ""), {}, r"^client 'anna': \S*wards.csv line 3: column 'age' has no value"),
    "blanks": (GOOD.replace("40.5", "  "), {}, r"^client 'anna': \S*wards.csv line 3: column 'age' has no value"),
    "NaN": (GOOD.replace("40.5", "NaN"), {}, r"^client 'anna': \S*wards.csv line 3: column 'age' has no value"),
    "infinity": (GOOD.replace("25", "inf"), {}, r"^client 'ben': \S*wards.csv line 5 is not finite"),
    "no label": (GOOD.replace("ben,1", "ben,", 1), {}, r"^client 'ben': \S*wards.csv line 4: column 'y' has no value"),
    "no client": (GOOD.replace("ben,1,22", ",1,22"), {}, r"^\S*wards.csv line 4: column 'site' has no value"),
    "half a class": (
        GOOD.replace("ben,1", "ben,0.5", 1),
        {},
        r"client 'ben': \S*wards.csv line 4 is not a class label",
    ),
    "a short row": (GOOD.replace(",25", ""), {}, r"wards.csv line 5 has 2 values for 3 columns"),
    "a long row": (GOOD.replace("25", "25,1"), {}, r"wards.csv line 5 has 4 values for 3 columns"),
    "a name twice": (GOOD.replace("age", "y"), {}, "more than one column 'y'"),
    "row numbers of pandas": (
        "".join(f"{'' if i == 0 else i},{line}\n" for i, line in enumerate(GOOD.splitlines())),
        {},
        "a column '' of row numbers; remove it",
    ),
    "no rows": ("site,y,age\n", {}, "has no rows"),
    "nothing": ("", {}, "has no rows"),
    "another encoding": ("site,y,age\nZürich,1,2\n".encode("latin-1"), {}, "not UTF-8 text"),
    "an open quote": (GOOD + 'ben,1,"3', {}, "line 6 is not valid CSV"),
    "an unknown new user": (GOOD, {"new": ["dora"]}, r"`new` names \['dora'\]"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_named(tmp_path, case):
    text, options, message = BAD[case]
    with pytest.raises(UserError, match=message):
        read(tmp_path, text, **options)


SECRET = "site,y,age,part\nanna,flu,31,train\nanna,gout,33,train\nanna,flu,40,test\nben,flu,22,train\n"


@pytest.mark.parametrize(
    ("old", "new", "options"),
    [
        ("22", "secret", {}),
        ("flu,40", "secret,40", {"split": "part"}),
        ("flu,40", "secret,40", {"classes": {"anna": ["flu", "gout"]}}),
        ("flu,40", "secret,40", {"regression": True}),
        ("40,test", "40,secret", {"split": "part"}),
    ],
)
def test_the_value_itself_is_not_repeated(tmp_path, old, new, options):
    with pytest.raises(UserError, match=r"line [245]") as caught:
        read(tmp_path, SECRET.replace(old, new), features=["age"], **options)
    for value in ("secret", "flu", "gout"):
        assert value not in str(caught.value)


@pytest.mark.parametrize("regression", [False, True])
def test_a_number_that_is_no_label_is_not_repeated(tmp_path, regression):
    bad = "-inf" if regression else "0.123"
    with pytest.raises(UserError, match="line 4 is not") as caught:
        read(tmp_path, GOOD.replace("ben,1", f"ben,{bad}", 1), regression=regression)
    assert bad not in str(caught.value)


def test_a_label_that_is_misspelt_is_blamed_itself(tmp_path):
    with pytest.raises(UserError, match=r"no column 'diag' \(did you mean 'diagnosis'\?\)"):
        read(tmp_path, "site,diagnosis,age\nanna,flu,31\n", label="diag")


SPLIT = "site,y,age,part\nanna,0,31,train\nanna,0,40,test\nben,1,22,train\nben,1,25,test\n"


def test_the_split_column_decides(tmp_path):
    federation = read(tmp_path, SPLIT, split="part", test=0.9)
    assert federation.sizes().tolist() == [1, 1]
    assert list(federation.splits) == ["train", "test"]
    assert federation.x[federation.splits["test"].values].tolist() == [[40], [25]]


def test_validation_may_be_called_val(tmp_path):
    federation = read(tmp_path, SPLIT + "ben,1,26,val\n", split="part")
    assert federation.x[federation.splits["validation"].values].tolist() == [[26]]
    assert federation.sizes("validation").tolist() == [0, 1]


def test_a_client_may_have_no_test_row(tmp_path):
    federation = read(tmp_path, SPLIT.replace("40,test", "40,train"), split="part")
    assert federation.sizes().tolist() == [2, 1]
    assert federation.sizes("test").tolist() == [0, 1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("40,test", "40,exam", "wards.csv line 3: column 'part' must be train, test or validation"),
        ("40,test", "40,", "line 3: column 'part' must be"),
        ("anna,0,40", "anna,7,40", r"client 'anna': \S*wards.csv line 3 has a label outside the client's label set"),
        ("22,train", "22,test", "client 'ben' has no training example"),
    ],
)
def test_mistakes_of_a_split(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, SPLIT.replace(old, new), split="part")


def test_frames_name_the_row():
    columns = {"site": ["a", "b"], "y": [0, 1], "age": [1.0, 2.0]}
    for bad, what in ((np.nan, "has no value"), (None, "has no value"), ("x", "is not a number")):
        with pytest.raises(UserError, match=f"client 'b': the table row 1: column 'age' {what}"):
            Federation.from_table({**columns, "age": np.array([1.0, bad], dtype=object)})
    with pytest.raises(UserError, match="client 'b': the table row 1: column 'age' has no value"):
        Federation.from_table({**columns, "age": [1.0, np.nan]})
    with pytest.raises(UserError, match=r"column 'age' holds datetime64\[D\], not numbers"):
        Federation.from_table({**columns, "age": np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]")})
    with pytest.raises(UserError, match="client 'b': the table mixes labels of different types"):
        Federation.from_table({**columns, "site": ["b", "b"], "y": np.array([1, "z"], dtype=object)})


def test_missing_values_of_parquet_are_missing(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "wards.parquet"
    for column, bad in (("age", None), ("y", None), ("height", None)):
        table = rows(clients())
        for row in table:
            row["age"] = int(row["age"])
        if column == "y":
            for row in table:
                row["y"] = str(row["y"])
        table[4][column] = bad
        parquet.write_table(pyarrow.Table.from_pylist(table), path)
        with pytest.raises(UserError, match=rf"client 'ben': \S*wards.parquet row 4: column '{column}' has no value"):
            Federation.from_table(path)


def test_what_is_no_table(tmp_path):
    with pytest.raises(UserError, match=r"file \S*wards.csv does not exist"):
        Federation.from_table(tmp_path / "wards.csv")
    with pytest.raises(UserError, match=r"neither a \.csv nor a \.parquet"):
        Federation.from_table(tmp_path / "wards.xlsx")
    with pytest.raises(UserError, match="expected a path or a data frame, not int"):
        Federation.from_table(7)
    pytest.importorskip("pyarrow")
    (tmp_path / "wards.parquet").write_bytes(b"PAR1 and so on")
    with pytest.raises(UserError, match="is not a Parquet file, or is damaged"):
        Federation.from_table(tmp_path / "wards.parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "wards.parquet").touch()
    with pytest.raises(UserError, match=r"pip install 'coterie\[tables\]'"):
        Federation.from_table(tmp_path / "wards.parquet")


def test_a_large_table_is_read_in_seconds(tmp_path):
    table = [{"site": f"s{i % 500}", "y": i % 3, "a": i / 7, "b": -i} for i in range(50_000)]
    federation = Federation.from_table(write_csv(tmp_path / "large.csv", table))
    assert len(federation.ids) == 500
    assert sum(ragged.lengths().sum() for ragged in federation.splits.values()) == 50_000


def test_a_number_with_underscores_is_none(tmp_path):
    with pytest.raises(UserError, match=r"^client 'ben': \S*wards.csv line 4: column 'age' is not a number"):
        read(tmp_path, GOOD.replace("22", "2_2"))
    columns = {"site": ["a", "b"], "y": [0, 1]}
    for age in (["1", "1_000"], np.array(["1", "1_000"], dtype=object), np.array([1, "1_000"], dtype=object)):
        with pytest.raises(UserError, match="client 'b': the table row 1: column 'age' is not a number"):
            Federation.from_table({**columns, "age": age})


def test_a_number_with_thousands_of_digits_is_refused(tmp_path):
    assert [22] in read(tmp_path, GOOD.replace("22", "0" * 998 + "22")).x.tolist()
    with pytest.raises(UserError, match="line 4: column 'age' has a text of more than 1,000 characters"):
        read(tmp_path, GOOD.replace("22", "0" * 999 + "22"))


def test_a_target_that_is_no_number_is_named(tmp_path):
    match = r"^client 'ben': \S*wards.csv line 4: column 'y' is not a number; .* omit `regression`$"
    with pytest.raises(UserError, match=match):
        read(tmp_path, GOOD.replace("ben,1", "ben,low", 1), regression=True)
    with pytest.raises(UserError, match=match):
        read(tmp_path, GOOD.replace("ben,1", "ben,1_0", 1), regression=True)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "anna.csv").write_text("y,age\n0.5,31\nlow,40\n")
    with pytest.raises(UserError, match=r"^client 'anna': \S*anna.csv line 3: column 'y' is not a number"):
        Federation.from_folder(tmp_path / "folder", regression=True)
    frame = {"site": ["a", "a"], "y": np.array([0.5, "low"], dtype=object), "age": [1.0, 2.0]}
    with pytest.raises(UserError, match=r"^client 'a': the table row 1 has a label that is text, not a number"):
        Federation.from_table(frame, regression=True)


def test_features_are_a_list(tmp_path):
    with pytest.raises(UserError, match=r"must be a list of columns, not a text; .* features=\['age'\]$"):
        read(tmp_path, GOOD, features="age")
    with pytest.raises(UserError, match=r"features=\['f'\]$"):
        Federation.from_table({"site": ["a", "b"], "y": [0, 1], "f": [1.0, 2.0]}, features="f")
    with pytest.raises(UserError, match="`features` must be a list of columns, such as"):
        read(tmp_path, GOOD, features=7)
    with pytest.raises(UserError, match=r"features=\['age'\]$"):
        Federation.from_folder(tmp_path, features="age")


def columns_read(folder, number):
    """Return the processor time of reading a table of as many columns."""
    names = [f"x{i}" for i in range(number)]
    path = folder / f"{number}.csv"
    path.write_text(",".join(["site", "y", *names]) + ("\na,0" + ",1" * number) * 2)
    start = time.process_time()
    Federation.from_table(path)
    Federation.from_table(path, features=names)
    return time.process_time() - start


def test_the_time_grows_with_the_columns_and_not_with_their_square(tmp_path):
    few = min(columns_read(tmp_path, 2000) for _ in range(3))
    assert columns_read(tmp_path, 20_000) < 40 * few


def test_parquet_names_are_compared_once(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "wide.parquet"

    def seconds(number):
        cells = {name: np.zeros(2) for name in ["site", "y", *(f"x{i}" for i in range(number))]}
        parquet.write_table(pyarrow.table(cells), path)
        start = time.process_time()
        Federation.from_table(path)
        return time.process_time() - start

    assert seconds(10_000) < 40 * min(seconds(1000) for _ in range(3))


def test_columns_that_cannot_be_used_are_not_read(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "wards.parquet"
    cells = {"site": ["a", "b"], "y": [0, 1], "a.b": [1.0, 2.0], "raw": [b"1", b"2"], "all": [[1], [2]]}
    cells["one"] = pyarrow.array([b"12", b"34"], pyarrow.binary(2))
    cells["a"] = [{"b": 5.0}, {"b": 6.0}]
    parquet.write_table(pyarrow.table(cells), path)
    assert Federation.from_table(path, features=["a.b"]).x.tolist() == [[1], [2]]
    for name in ("raw", "all", "one", "a"):
        with pytest.raises(UserError, match=f"column '{name}' holds lists or binary values, not numbers; omit it"):
            Federation.from_table(path, features=["a.b", name])
        for role in ("client", "label"):
            with pytest.raises(UserError, match=f"column '{name}' must have one number or text in each row, not lists"):
                Federation.from_table(path, features=["a.b"], **{role: name})


def test_a_client_with_one_example_needs_no_draw(tmp_path, monkeypatch):
    calls = []

    def split(y, shares, rng):
        calls.append(len(y))
        return split_rows(y, shares, rng)

    monkeypatch.setattr(pool, "split_rows", split)
    federation = read(tmp_path, GOOD + "".join(f"c{i},0,1\n" for i in range(100)), validation=0.25)
    assert calls == [2, 2]
    sizes = {name: int(federation.sizes(name).sum()) for name in federation.splits}
    assert sizes == {"train": 103, "test": 1, "validation": 0}


def test_a_small_client_takes_little_memory() -> None:
    """With 2,000 bytes for each client, a file of 9 MB with a client in each row would take 2 GB."""
    rows = 20_000
    table = {"site": [f"{i:x}" for i in range(rows)], "x": np.arange(rows) % 7, "y": np.arange(rows) % 2}
    tracemalloc.start()
    federation = Federation.from_table(table)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(federation.ids) == rows
    assert peak / rows < 800
