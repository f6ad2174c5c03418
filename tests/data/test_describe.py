"""`coterie data` as a user types it."""

import logging
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie import cli
from coterie.data.describe import described
from coterie.federation import Examples, Groups
from data.test_libsvm import written
from data.test_mnist import write_toy


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    yield
    logging.getLogger("coterie").handlers.clear()


def coterie(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["coterie", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code


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
    assert capsys.readouterr().out == "digits: nothing to fetch\n"


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


def test_show_says_why_a_partition_does_not_fit(monkeypatch, tmp_path: Path, capsys) -> None:
    written(tmp_path, b"".join(b"%d 1:1\n" % (row % 3) for row in range(24)))
    options = ["--set", f"data.path={tmp_path}", "--set", "data.file=toy.svm"]
    assert coterie(monkeypatch, "data", "show", "libsvm", *options) == 0
    printed = capsys.readouterr().out
    assert ["18", "6", "1", "3", "-"] in words(printed)
    assert "Not dealt to clients: partition.clients = 50" in printed
    assert coterie(monkeypatch, "data", "show", "libsvm", *options, "--set", "partition.clients=4") == 0
    assert ["4", "clients,", "0", "new", "users", "min", "median", "max"] in words(capsys.readouterr().out)


def test_many_classes_are_cut_short(capsys) -> None:
    from rich.console import Console

    y = np.arange(90) % 45
    data = Examples(np.zeros((90, 2)), y, np.zeros((45, 2)), y[:45], tuple(range(45)), Groups(y, y[:45], ("a", "b")))
    Console(width=100).print(described(data))
    printed = words(capsys.readouterr().out)
    assert ["90", "45", "2", "45", "2"] in printed
    assert ["...", "15", "more", "2", "to", "2", "1", "to", "1", "least", "to", "most,", "of", "all"] in printed
