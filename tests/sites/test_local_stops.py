"""`coterie local` is stopped and continued as a person does it."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coterie.storage.folder import read_summary

RUN = "coterie local digits --sites 2 --set partition.classes_per_client=5 --set run.rounds=12 --out all"
PATIENCE = 240.0


def start(command: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


@pytest.mark.timeout(600)
def test_a_local_run_is_stopped_and_continued_by_the_command_that_it_prints(tmp_path):
    first, rounds = start(RUN, tmp_path), tmp_path / "all" / "run" / "rounds.jsonl"
    end = time.monotonic() + PATIENCE
    while not (rounds.exists() and rounds.read_bytes()):
        assert first.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    told, _ = first.communicate(timeout=PATIENCE)
    assert first.returncode == 130, told
    assert rounds.read_bytes().count(b"\n") < 12
    assert read_summary(tmp_path / "all" / "run") is None
    assert not [line for line in processes() if str(tmp_path) in line]

    command = told.strip().splitlines()[-1]
    second = start(command, tmp_path)
    told, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, told
    assert read_summary(tmp_path / "all" / "run") is not None
    assert rounds.read_bytes().count(b"\n") == 12


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.timeout(600)
def test_nothing_is_left_of_a_local_run_that_is_killed(tmp_path):
    command, end = start(RUN, tmp_path), time.monotonic() + PATIENCE
    logs = [tmp_path / "all" / "sites" / name / "site.log" for name in "01"]
    while not all(log.exists() and b"connected to the server" in log.read_bytes() for log in logs):
        assert command.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    assert [line for line in processes() if str(tmp_path) in line]
    command.kill()
    command.communicate()
    while [line for line in processes() if str(tmp_path) in line]:
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.05)


def processes() -> list[str]:
    """Return the folders in which processes of this user work, and what they were started with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append(f"{(folder / 'cwd').readlink()} {(folder / 'cmdline').read_bytes()!r}")
        except OSError:
            continue
    return found
