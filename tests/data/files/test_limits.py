"""Small files that ask for much memory are refused before they get it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from data.files import bombs

MOST = 1 << 30


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Read all bombs in a process of its own, because the memory that a process once used is part of its record."""
    folder = tmp_path_factory.mktemp("bombs")
    done = subprocess.run([sys.executable, bombs.__file__, str(folder)], capture_output=True, text=True, check=True)
    assert max(sum(file.stat().st_size for file in bomb.rglob("*")) for bomb in folder.iterdir()) < 10 << 20
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", bombs.BOMBS)
def test_a_bomb_is_refused_within_a_gigabyte(outcomes: dict[str, dict[str, int]], name: str) -> None:
    assert outcomes[name]["status"] == bombs.REFUSED
    assert outcomes[name]["used"] < MOST


@pytest.mark.parametrize("name", bombs.LARGE)
def test_a_file_that_is_read_takes_what_it_may(outcomes: dict[str, dict[str, int]], name: str) -> None:
    assert outcomes[name]["status"] == bombs.READ
    assert outcomes[name]["used"] < MOST


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.data.files import limits
    from coterie.errors import UserError

    (tmp_path / "a").write_bytes(b"1" * 1000)
    assert limits.allowed(tmp_path / "a") == (400 << 20) + 40_000
    with pytest.raises(
        UserError, match=r"a is refused: x would take 2\.0 GB of memory, more than 0\.4 GB; .*COTERIE_MAX_GB=2$"
    ):
        limits.check(2 * 10**9, "x", tmp_path / "a")
    monkeypatch.setenv("COTERIE_MAX_GB", "2")
    limits.check(2 * 10**9, "x", tmp_path / "a")


def test_settings_that_need_more_than_the_machine_has_are_refused() -> None:
    from coterie import registry
    from coterie.errors import UserError

    for name, options in (
        ("synthetic", {"clients": 2**62}),
        ("synthetic", {"features": 2**40, "examples": 1, "clients": 1, "classes": 2**20}),
        ("least-squares", {"clients": 2**50}),
    ):
        with pytest.raises(
            UserError, match=r"these settings need about .* GB of memory, more than .*; lower data\.clients"
        ):
            registry.load("data", name)(**options).load()
