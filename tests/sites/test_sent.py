"""The log of what left a site."""

import errno
import hashlib
import json
import os

import pytest

from coterie.errors import DiskError, UserError
from coterie.sites import sent
from coterie.sites.sent import HEADINGS, SentLog, read, table
from coterie.sites.terms import Form

FORMS = (Form("body.weight", (3, 2), "float32"), Form("scale", (), "float64"))


def filled(state, messages=3):
    log = SentLog(state)
    for n in range(messages):
        log.append("update", "f" * 64, n + 1, FORMS[::-1], ["loss", "examples"], b"message %d" % n)
    return state / "sent.jsonl"


def test_each_message_is_a_line(tmp_path):
    file = filled(tmp_path)
    found = read(tmp_path)
    assert len(file.read_text().splitlines()) == 3
    assert [line.digest for line in found] == [hashlib.sha256(b"message %d" % n).hexdigest() for n in range(3)]
    assert [line.round for line in found] == [1, 2, 3]
    assert (found[0].kind, found[0].run, found[0].bytes) == ("update", "f" * 64, 9)
    assert found[0].tensors == FORMS
    assert found[0].numbers == ("loss", "examples")
    assert found[0].time.endswith("+00:00")
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_lines_are_plain_json(tmp_path):
    line = json.loads(filled(tmp_path).read_text().splitlines()[1])
    assert line["tensors"] == [["body.weight", [3, 2], "float32"], ["scale", [], "float64"]]
    assert line["digest"] == hashlib.sha256(b"message 1").hexdigest()
    assert set(line) == {"time", "kind", "run", "round", "tensors", "numbers", "bytes", "digest", "sha256"}


def test_a_log_is_continued_after_a_restart(tmp_path):
    file = filled(tmp_path, 2)
    before = file.read_bytes()
    SentLog(tmp_path).append("score", "f" * 64, 3, (), ["accuracy"], b"")
    assert file.read_bytes().startswith(before)
    assert [line.kind for line in read(tmp_path)] == ["update", "update", "score"]


def test_no_log_is_an_empty_log(tmp_path):
    assert read(tmp_path) == table(tmp_path) == []
    SentLog(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_a_column_for_each_heading(tmp_path):
    filled(tmp_path)
    rows = table(tmp_path)
    assert [len(row) for row in rows] == [len(HEADINGS)] * 3
    assert rows[2][1:] == (
        *("update", "ffffffffffff", "3", "body.weight 3x2 float32\nscale 1 float64", "loss\nexamples", "9"),
        hashlib.sha256(b"message 2").hexdigest()[:12],
    )


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_half_written_line_is_dropped_and_the_log_continued(tmp_path, keep):
    """Cut the file inside its third line, as a killed process or a lost power supply does."""
    file = filled(tmp_path)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1] + lines[2][:keep])
    assert [line.round for line in read(tmp_path)] == [1, 2]
    SentLog(tmp_path).append("update", "f" * 64, 7, FORMS, (), b"again")
    assert [line.round for line in read(tmp_path)] == [1, 2, 7]
    assert file.read_bytes().startswith(lines[0] + lines[1])


@pytest.mark.parametrize("what", ["edited", "lost", "swapped", "foreign", "empty"])
def test_lines_that_were_changed_are_noticed(tmp_path, what):
    file = filled(tmp_path)
    one, two, three = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(
        {
            "edited": one + two.replace(b'"round": 2', b'"round": 3') + three,
            "lost": one + three,
            "swapped": one + three + two,
            "foreign": one + b"{}\n" + two,
            "empty": one + b"\n" + two,
        }[what]
    )
    kept = file.read_bytes()
    for use in (read, table, SentLog):
        with pytest.raises(UserError, match=r"sent\.jsonl is damaged: line 2 or the one before it"):
            use(tmp_path)
    assert file.read_bytes() == kept


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_message_that_could_not_be_logged_is_not_half_logged(tmp_path, monkeypatch, call):
    """A full disk takes a part of the line; the next message is written over it."""
    log, file = SentLog(tmp_path), tmp_path / "sent.jsonl"
    log.append("update", "f" * 64, 1, FORMS, (), b"one")

    def full(descriptor):
        if call == "write":
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - 20)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sent.os, "fsync", full)
        with pytest.raises(DiskError, match=r"sent\.jsonl could not be written, so nothing is sent: No space left"):
            log.append("update", "f" * 64, 2, FORMS, (), b"two")
    log.append("update", "f" * 64, 3, FORMS, (), b"three")
    assert [line.round for line in read(tmp_path)] == [1, 3]
    assert len(file.read_bytes().splitlines()) == 2


def test_a_log_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "sent.jsonl").mkdir()
    for use in (read, SentLog):
        with pytest.raises(UserError, match=r"cannot read .*sent\.jsonl"):
            use(tmp_path)


@pytest.mark.parametrize("bit", range(8))
def test_a_changed_end_of_the_last_line_is_not_a_half_written_line(tmp_path, bit):
    file = filled(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1 << bit]))
    with pytest.raises(UserError, match="line 3 or the one before it was changed"):
        read(tmp_path)
    file.write_bytes(whole[:-1])  # a full disk
    assert len(read(tmp_path)) == 2
