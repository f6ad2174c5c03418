"""Seals: a text file of a run ends with the sha256 of everything before it, so that a changed byte is noticed.

A seal is part of the file's own format: the last key of JSON, a comment in TOML. Such a file is therefore written in
one step, and other programs can still read it. In rounds.jsonl each line has a seal, which also covers the line before.
The seal of the first line covers the identity of the run.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

KEY = "sha256"


class Format(NamedTuple):
    """What is written around a seal."""

    before: bytes
    after: bytes


JSON = Format(f',\n  "{KEY}": "'.encode(), b'"\n}\n')
LINE = Format(f', "{KEY}": "'.encode(), b'"}')
TOML = Format(f"\n# {KEY} of everything above, without this line: ".encode(), b"\n")


class BrokenSealError(ValueError):
    """A file that differs from what was written, or that an earlier version of Coterie wrote in another form."""

    def __init__(self) -> None:
        super().__init__("its sha256 does not match its content")


def sealed_json(tree: Mapping[str, Any]) -> bytes:
    """Return the content of a JSON file with a seal."""
    return _sealed(json.dumps(tree, indent=2).encode().removesuffix(b"\n}"), JSON)


def read_json(content: bytes) -> dict[str, Any]:
    """Return the tree of a JSON file. Raises BrokenSealError if it was changed."""
    _check(content, JSON)
    tree: dict[str, Any] = json.loads(content)
    del tree[KEY]
    return tree


def sealed_toml(tree: Mapping[str, Any], facts: Mapping[str, str]) -> bytes:
    """Return the content of a TOML file with a seal. The facts are comments below the tree."""
    comments = "".join(f"\n# {name}: {value}" for name, value in facts.items())
    return _sealed((tomli_w.dumps(tree) + comments).encode(), TOML)


def read_toml(content: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tree and the facts of a TOML file. Raises BrokenSealError if it was changed."""
    _check(content, TOML)
    text = content.decode()
    *comments, _ = (line[2:].split(": ", 1) for line in text.split("\n") if line.startswith("# "))
    if not comments:
        raise BrokenSealError  # an earlier version of Coterie wrote no facts
    return tomllib.loads(text), dict(comments)


def sealed_line(tree: Mapping[str, Any], last: str) -> tuple[bytes, str]:
    """Return a line of JSON with a seal, and the digest to give as `last` for the next line."""
    line = _sealed(json.dumps(tree).encode().removesuffix(b"}"), LINE, last)
    return line, _digest_in(line, LINE)


def read_line(line: bytes, last: str) -> tuple[dict[str, Any], str]:
    """Return the tree of a line and its digest. Raises BrokenSealError if it, or the line before it, was changed."""
    digest = _check(line, LINE, last)
    tree: dict[str, Any] = json.loads(line)
    del tree[KEY]
    return tree, digest


def file_digest(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sealed(body: bytes, form: Format, last: str = "") -> bytes:
    return body + form.before + _digest(body, last).encode() + form.after


def _check(content: bytes, form: Format, last: str = "") -> str:
    size = len(form.before) + 64 + len(form.after)
    body, digest = content[:-size], _digest_in(content, form)
    if content != body + form.before + digest.encode() + form.after or digest != _digest(body, last):
        raise BrokenSealError
    return digest


def _digest_in(content: bytes, form: Format) -> str:
    return content[: -len(form.after)][-64:].decode(errors="replace")


def _digest(body: bytes, last: str) -> str:
    return hashlib.sha256(last.encode() + body).hexdigest()
