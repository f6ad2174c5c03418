"""The command as a user types it, in this process."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from coterie import cli


@contextmanager
def in_folder(path, monkeypatch) -> Iterator[None]:
    """On a wide terminal; afterwards logging is as it was."""
    monkeypatch.chdir(path)
    monkeypatch.setenv("COLUMNS", "200")
    level = logging.getLogger("coterie").level
    try:
        yield
    finally:
        logging.getLogger("coterie").handlers.clear()
        logging.getLogger("coterie").setLevel(level)


def coterie(monkeypatch, *arguments) -> int:
    """Its exit code."""
    monkeypatch.setattr(sys, "argv", ["coterie", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code
