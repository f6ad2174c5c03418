"""The command `coterie local`, apart from its processes, which tests/sites/test_processes.py starts."""

import json
import signal
import subprocess
import sys

import pytest

import reference as ref
from coterie.cli.local import _progress, _watch
from coterie.errors import UserError
from coterie.sites.local import Local


def test_a_signal_stops_the_server(tmp_path):
    """The server is in a session of its own, so that Ctrl-C does not reach it by itself."""
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    made = Local(tmp_path, ref.federation((5, 3)), 0)
    with subprocess.Popen(sleeps, start_new_session=True) as made.server:
        _watch(made, 3, [signal.SIGINT])
    assert made.server.returncode == -signal.SIGTERM


def test_a_half_written_line_is_not_read(tmp_path):
    assert _progress(tmp_path, 9) == "sites connect, and are told about the run"
    line = json.dumps({"train_loss": 0.5})
    (tmp_path / "rounds.jsonl").write_text(f"{line}\n{line[:10]}")
    assert _progress(tmp_path, 9) == "round 1 of 9, loss 0.5000"


def test_a_folder_that_was_not_made_completely_is_not_resumed(tmp_path):
    made = Local(tmp_path, ref.federation((5, 3)), 0)
    made.prepare()
    with pytest.raises(UserError, match="was stopped before everything was made: remove it"):
        made.check_prepared()
    (tmp_path / "recipe.toml").write_text("")
    made.check_prepared()
    with pytest.raises(UserError, match="has 2 sites, and this command would divide the data among 3"):
        Local(tmp_path, ref.federation((5, 3, 8)), 0).check_prepared()
