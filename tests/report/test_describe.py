"""`coterie data` as a user types it."""

import logging
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from commands import coterie
from coterie.data.examples import Examples, Groups
from coterie.data.federation import Federation
from coterie.recipe import read
from coterie.report.census import classes_per_client
from coterie.report.describe import dealt, described
from data.sets.held import examples, federation, holding
from data.sets.test_libsvm import written
from data.sets.test_mnist import write_toy
from report.parsed_page import Parsed


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    yield
    logging.getLogger("coterie").handlers.clear()


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_fetch_says_where_the_files_are(monkeypatch, tmp_path: Path, capsys) -> None:
    (tmp_path / "mnist").mkdir()
    write_toy(tmp_path / "mnist")
    assert coterie(monkeypatch, "data", "fetch", "mnist") == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 4
    assert printed[0] == str(tmp_path / "mnist" / "train-images-idx3-ubyte")


def test_fetch_of_embedded_data_has_nothing_to_do(monkeypatch, capsys) -> None:
    assert coterie(monkeypatch, "data", "fetch", "digits") == 0
    assert capsys.readouterr().out == "digits: nothing to download\n"


def test_what_cannot_be_had_ends_with_code_2(monkeypatch, tmp_path: Path, capsys) -> None:
    assert coterie(monkeypatch, "data", "fetch", "mnist", "--set", f"data.path={tmp_path}") == 2
    assert "mnist: missing train-images-idx3-ubyte" in capsys.readouterr().err
    assert coterie(monkeypatch, "data", "show", "minst") == 2
    assert "did you mean 'mnist'?" in capsys.readouterr().err


def test_show_counts_the_data_and_the_clients(monkeypatch, capsys) -> None:
    assert coterie(monkeypatch, "data", "show", "digits") == 0
    printed = words(capsys.readouterr().out)
    assert ["1,347", "450", "8x8", "10", "-"] in printed
    assert ["3", "137", "46", "█" * 24] in printed
    assert ["40", "clients,", "10", "new", "users", "min", "median", "max"] in printed
    assert ["classes", "2", "2", "2"] in printed
    sizes = read({"data": {"name": "digits"}}).federation().sizes()
    low, to, high, number, _ = printed[printed.index(["train", "examples", "clients"]) + 2]
    assert (low, to, high) == (str(sizes.min()), "to", "20")
    assert int(number) == (sizes <= 20).sum()


def test_show_says_why_a_partition_does_not_fit(monkeypatch, tmp_path: Path, capsys) -> None:
    written(tmp_path, b"".join(b"%d 1:1\n" % (row % 3) for row in range(24)))
    options = ["--set", f"data.path={tmp_path}", "--set", "data.file=toy.svm", "--set", "partition.name=classes"]
    assert coterie(monkeypatch, "data", "show", "libsvm", *options) == 0
    printed = capsys.readouterr().out
    assert ["18", "6", "1", "3", "-"] in words(printed)
    assert "could not be distributed to clients: partition.clients = 50" in printed
    assert coterie(monkeypatch, "data", "show", "libsvm", *options, "--set", "partition.clients=4") == 0
    assert ["4", "clients,", "0", "new", "users", "min", "median", "max"] in words(capsys.readouterr().out)


def test_many_classes_are_cut_short(capsys) -> None:
    y = np.arange(90) % 45
    data = Examples(np.zeros((90, 2)), y, np.zeros((45, 2)), y[:45], tuple(range(45)), Groups(y, y[:45], ("a", "b")))
    Console(width=100).print(described(data))
    printed = words(capsys.readouterr().out)
    assert ["90", "45", "2", "45", "2"] in printed
    assert ["...", "15", "more", "2", "to", "2", "1", "to", "1", "range", "over", "all"] in printed


def printed(federation: Federation, width: int = 100, terminal: bool = False) -> str:
    console = Console(width=width, force_terminal=terminal, color_system="truecolor" if terminal else None)
    with console.capture() as capture:
        console.print(dealt(federation))
    return capture.get()


def read_map(text: str, names: int, cell: int, classes: int) -> tuple[dict[str, list[str]], dict[str, tuple[int, int]]]:
    """(shade of each class by client, least and most of each shade), as a reader would take them from the screen."""
    lines = text.splitlines()
    start = next(place for place, line in enumerate(lines) if "ordered by main" in line) + 2
    *rows, key = lines[start:]
    shades = {row[:names].strip(): [row.ljust(200)[names + cell * k] for k in range(classes)] for row in rows}
    ranges = {" ": (0, 0)}
    for entry in key.rstrip().split("   "):
        shade, first, *last = entry.replace(" to ", " ").replace(",", "").split()
        ranges[shade[0]] = int(first), int((last or [first])[0])
    return shades, ranges


def test_every_shade_covers_its_count(monkeypatch, capsys) -> None:
    assert coterie(monkeypatch, "data", "show", "digits") == 0
    shades, ranges = read_map(capsys.readouterr().out, names=7, cell=2, classes=10)
    fed = read({"data": {"name": "digits"}}).federation()
    counts = classes_per_client(fed)
    marked = [name + (" new" if is_new else "") for name, is_new in zip(fed.ids, fed.is_new, strict=True)]
    assert sorted(" ".join(who.split()) for who in shades) == sorted(marked)
    for who, row in shades.items():
        for shade, count in zip(row, counts[fed.ids.index(who.split()[0])], strict=True):
            low, high = ranges[shade]
            assert low <= count <= high
    assert max(ranges.values())[1] == counts.max()


def test_shades_are_quarters_of_the_square_root() -> None:
    shades, ranges = read_map(printed(holding([[0, 1, 10, 11, 40, 41, 90, 91, 160]])), names=3, cell=2, classes=9)
    assert shades["c0"] == [" ", "░", "░", "▒", "▒", "▓", "▓", "█", "█"]
    assert ranges == {" ": (0, 0), "░": (1, 10), "▒": (11, 40), "▓": (41, 90), "█": (91, 160)}
    _, ranges = read_map(printed(holding([[1, 2]])), names=3, cell=2, classes=2)
    assert ranges == {" ": (0, 0), "▓": (1, 1), "█": (2, 2)}, "shades of no number are not in the key"


def test_what_does_not_fit_is_sampled_and_said() -> None:
    text = printed(holding(np.tile(np.eye(200, dtype=int), (4, 1))), 60)
    assert "4 classes per column, every 16th of 800 clients, ordered by main class" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 60
    assert len([line for line in text.splitlines() if line.startswith("c") and "█" in line]) == 50
    assert "0 to 3" in text
    assert "196 to 199" in text


def test_colour_only_on_a_terminal_and_never_needed() -> None:
    fed = holding([[1, 0, 5], [0, 9, 2]], new=[1])
    piped, coloured = printed(fed), printed(fed, terminal=True)
    assert "\x1b" not in piped
    assert "\x1b[38;2;30;100;242m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == piped


@pytest.mark.parametrize(
    ("classes", "heading"),
    [
        (("cat", "horse"), "   cat   horse"),
        (("cat", "rhinoceros"), "   cat   rh…os"),
        (tuple(f"kind {k}" for k in range(40)), "   kind 0" + 67 * " " + "kind 39"),
    ],
)
def test_class_names_stand_over_their_columns_if_there_is_room(classes: tuple[str, ...], heading: str) -> None:
    counts = np.ones((1, len(classes)), dtype=int)
    assert heading in [line.rstrip() for line in printed(holding(counts, labels=classes), 84).splitlines()]


def test_names_are_text_and_told_apart_by_their_ends() -> None:
    names = ("[red]play_of_many_words_ROMEO", "[red]play_of_many_words_JULIET")
    text = printed(holding([[1, 0], [0, 1]], ids=names))
    assert "[red]pla…s_ROMEO" in text
    assert "[red]pla…_JULIET" in text


def test_targets_have_a_histogram_and_a_strip_for_each_client(capsys) -> None:
    y = np.concatenate([np.zeros(5), np.full(5, 7.0)])
    rows = words(printed(federation(y, [np.arange(5), np.arange(5, 10)], (), new=[1])))
    assert ["c0", "0", "0", "0", "●"] in rows
    assert ["c1", "new", "7", "7", "7", "●"] in rows
    assert not [row for row in rows if row[0] == "classes"]
    Console(width=100).print(described(examples(y, y[:2], ())))
    rows = words(capsys.readouterr().out)
    assert ["10", "2", "2", "-"] in rows
    assert ["0.00", "to", "0.70", "5", "█" * 24] in rows
    assert ["6.30", "to", "7.00", "5", "█" * 24] in rows


def test_tokens_are_shown_where_classes_would_be(capsys) -> None:
    y = np.array([[0, 1, 1], [1, -1, -1]])
    Console(width=100).print(described(examples(y, y, ("a", "\n"))))
    rows = words(capsys.readouterr().out)
    assert ["'\\n'", "3", "3", "█" * 24] in rows
    text = printed(federation(y, [[0], [1]], ("a", "\n")))
    assert ["tokens", "1", "1.5", "2"] in words(text)
    assert "training positions: all 2 clients, ordered by main token" in text


def test_show_writes_a_page(monkeypatch, tmp_path: Path, capsys) -> None:
    page = tmp_path / "pages" / "digits.html"
    options = ["--set", "partition.clients=20", "--set", "run.seed=3", "--out", str(page)]
    assert coterie(monkeypatch, "data", "show", "digits", *options) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(page)
    parsed = Parsed(page.read_text(encoding="utf-8"))
    changed = read({"data": {"name": "digits"}, "partition": {"clients": 20}, "run": {"seed": 3}})
    counts = classes_per_client(changed.federation())
    assert sorted(parsed.figures["held"]["data"][0]["z"]) == sorted(counts.tolist())
    settings = tomllib.loads(parsed.text[parsed.text.index("[data]") :])
    tree = changed.as_dict()
    assert settings == {"data": tree["data"], "partition": tree["partition"], "run": {"seed": 3}}


def test_a_page_without_clients_says_why(monkeypatch, tmp_path: Path, capsys) -> None:
    page = tmp_path / "digits.html"
    assert coterie(monkeypatch, "data", "show", "digits", "--set", "partition.clients=1", "--out", str(page)) == 0
    parsed = Parsed(page.read_text(encoding="utf-8"))
    assert list(parsed.figures) == ["totals"]
    assert "could not be distributed to clients: 1 existing clients with 2 classes each cannot cover 10" in parsed.text
