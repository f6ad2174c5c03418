"""The harness: who is timed when, what becomes of it, and what is written."""

import io
import itertools
import json
import time

import pytest
from benchmarks.result import Figure, Result, ratio
from benchmarks.timing import TURN, Child, interleave, scaled, timed
from rich.console import Console


def recorded(calls, name, seconds):
    """A piece of work that says when it was called, and takes what it is told."""
    times = itertools.chain([99.0], itertools.repeat(seconds))

    def work():
        calls.append(name)
        return next(times)

    return work


def test_variants_take_turns_after_a_warm_up_that_does_not_count():
    calls = []
    seconds = interleave({"a": recorded(calls, "a", 1.0), "b": recorded(calls, "b", 2.0)}, repeats=3)
    assert calls == ["a", "b"] * 4
    assert seconds == {"a": [1.0] * 3, "b": [2.0] * 3}


def test_quick_work_is_done_several_times_a_turn():
    calls = []
    quick, slow = recorded(calls, "quick", 0.4 * TURN), recorded(calls, "slow", TURN)
    seconds = interleave({"quick": quick, "slow": slow}, repeats=2)
    assert calls == ["quick", "slow", *["quick", "quick", "quick", "slow"] * 2]
    assert {name: len(each) for name, each in seconds.items()} == {"quick": 6, "slow": 2}


def test_ratios_are_of_medians():
    assert ratio({"a": [3.0, 100.0, 4.0], "b": [2.0, 1.0, 50.0]}, "a", "b") == 2.0


def test_a_function_is_timed_and_a_part_is_scaled():
    assert timed(lambda: time.sleep(0.01))() >= 0.01
    assert scaled(lambda: 0.5, 20)() == 10.0


@pytest.mark.parametrize(
    ("figure", "met", "target", "mark"),
    [
        (Figure("a", 2.0, at_most=2), True, "at most 2x", "✓"),
        (Figure("a", 2.1, at_most=2), False, "at most 2x", "✗"),
        (Figure("a", 41.0, at_least=40), True, "at least 40x", "✓"),
        (Figure("a", 39.0, at_least=40), False, "at least 40x", "✗"),
        (Figure("a", 1.5, at_most=2, unit=" GB"), True, "at most 2 GB", "✓"),
        (Figure("a", 1.0), None, "", ""),
    ],
)
def test_targets(figure, met, target, mark):
    assert figure.met is met
    assert figure.target == target
    assert mark in figure.row()[3]
    assert figure.as_dict().get("met") is met


def test_a_result_is_printed_and_written(tmp_path):
    figures = [Figure("a / b", 0.02, at_most=0.01), Figure("b / a", 50.0, at_least=40)]
    result = Result("Z: a title", {"a": [0.1, 0.3, 0.2], "b": [10.0]}, figures, ["A note."])
    console = Console(width=80, file=io.StringIO())
    console.print(result.printed())
    text = console.file.getvalue()
    for part in ("Z: a title", "200 ms", "10 s", "a / b", "0.02x", "at most 0.01x", "✗", "50x", "✓", "A note."):
        assert part in text, part
    result.write(tmp_path / "new" / "Z.json")
    written = json.loads((tmp_path / "new" / "Z.json").read_text())
    assert written["seconds"] == {"a": [0.1, 0.3, 0.2], "b": [10.0]}
    assert written["figures"][0] == {"what": "a / b", "value": 0.02, "unit": "x", "at_most": 0.01, "met": False}
    assert written["notes"] == ["A note."]
    assert written["cpus"] >= 1
    assert written["threads"] >= 1
    assert written["torch"]


def fill(done, megabytes):
    done(1.0)
    held = bytearray(megabytes * 10**6)
    for place in range(0, len(held), 4096):
        held[place] = 1
    done(2.0)
    done(float(len(held)))


def fail(done):
    raise SystemExit(7)


def test_a_child_works_when_called_and_tells_its_peak_memory():
    ballast = bytearray(6 * 10**8)
    ballast[::4096] = b"1" * len(ballast[::4096])
    with Child(fill, 200) as child:
        assert child() == 1.0
        before = child.peak
        assert 0 < before < 6 * 10**8  # not this process's own
        assert child() == 2.0
        assert 190 * 10**6 < child.peak - before < 300 * 10**6


def test_a_child_that_dies_is_an_error():
    with Child(fail) as child, pytest.raises(ChildProcessError, match="code 7"):
        child()
