"""Seals: every changed bit of a sealed file is noticed."""

import json
import tomllib

import pytest

from coterie.storage.seal import (
    BrokenSealError,
    read_json,
    read_line,
    read_toml,
    sealed_json,
    sealed_line,
    sealed_toml,
)

TREE = {"run": {"rounds": 3, "rho": 0.01}, "name": "ä\n# federation: c\x85# d", "sizes": [1, 2]}


def flipped(content: bytes) -> list[bytes]:
    """Return the content with each of its bits changed."""
    found = []
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        found.append(bytes(damaged))
    return found


FACTS = {"initial model": "a1", "federation": "b: 2"}


@pytest.mark.parametrize(
    ("content", "read", "expected"),
    [(sealed_json(TREE), read_json, TREE), (sealed_toml(TREE, FACTS), read_toml, (TREE, FACTS))],
)
def test_what_was_sealed_is_read_and_no_bit_can_change(content, read, expected):
    assert read(content) == expected
    damaged = [*flipped(content), *(content[:size] for size in range(len(content))), content + b"\n"]
    for each in damaged:
        with pytest.raises(BrokenSealError):
            read(each)


def test_a_file_of_an_earlier_version_has_no_facts():
    with pytest.raises(BrokenSealError):
        read_toml(sealed_toml(TREE, {}))


def test_other_programs_can_read_sealed_files():
    assert {**json.loads(sealed_json(TREE)), "sha256": "0" * 64} == {**TREE, "sha256": "0" * 64}
    assert tomllib.loads(sealed_toml(TREE, FACTS).decode()) == TREE


def test_a_line_belongs_behind_the_line_before():
    first, one = sealed_line({"round": 1}, "")
    second, two = sealed_line({"round": 2}, one)
    third, _ = sealed_line({"round": 3}, two)
    assert json.loads(second) == {"round": 2, "sha256": two}
    assert read_line(first, "") == ({"round": 1}, one)
    assert read_line(second, one) == ({"round": 2}, two)
    for line, last in [(second, ""), (third, one), (first, one), *((each, one) for each in flipped(second))]:
        with pytest.raises(BrokenSealError):
            read_line(line, last)
