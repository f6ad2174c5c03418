"""The section "Deploy" of the README runs as printed, apart from the port, and reaches the simulator's numbers."""

import re
import shlex
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import coterie
from coterie.sites.local import last_words
from sites.deployment import PATIENCE, free_port

README = Path(__file__).parents[2] / "README.md"


def lines() -> list[list[str]]:
    """Return the commands of the section, in their order."""
    (section,) = re.findall(r"\n## Deploy\n(.*?)\n## ", README.read_text(), re.DOTALL)
    text = section.replace("127.0.0.1:8443", f"127.0.0.1:{free_port()}")
    return [shlex.split(line) for line in re.findall(r"^    (.+)$", text, re.MULTILINE)]


class Terminals:
    """Terminals in one folder. What keeps running is ended in the end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.opened: list[tuple[subprocess.Popen[bytes], Path]] = []

    def type(self, command: list[str]) -> str:
        """Run a command to its end, and return what it prints."""
        made = subprocess.run(self._own(command), cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE)
        assert made.returncode == 0, made.stderr
        return made.stdout

    def open(self, command: list[str]) -> None:
        """Start a command in a terminal of its own."""
        log = self.folder / f"terminal-{len(self.opened)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(self._own(command), cwd=self.folder, stdout=out, stderr=out)
        self.stack.callback(process.wait, 30)
        self.stack.callback(process.terminate)
        self.opened.append((process, log))

    @staticmethod
    def _own(command: list[str]) -> list[str]:
        return [sys.executable, "-m", *command] if command[0] == "coterie" else command


def digest_at(terminals: Terminals, show: list[str]) -> str:
    """Return the digest of the run that waits for a decision, as soon as there is one."""
    requests = terminals.folder / show[show.index("--state") + 1] / "requests"
    end = time.monotonic() + PATIENCE
    while not list(requests.glob("*.json")):
        assert time.monotonic() < end, [last_words(log) for _, log in terminals.opened]
        time.sleep(0.1)
    return terminals.type(show).split()[0]


@pytest.mark.timeout(600)
def test_the_section_on_deployment_runs_as_it_is_printed(tmp_path):
    commands = lines()
    starts = [command[1] for command in commands if command[0] == "coterie"]
    assert starts.count("server") == 1
    with ExitStack() as stack:
        terminals, digest = Terminals(tmp_path, stack), ""
        for command in commands:
            if "--listen" in command or "--server" in command:
                terminals.open(command)
            elif "requests" in command:
                digest = digest_at(terminals, command)
            elif command[:2] == ["coterie", "run"]:
                server, log = terminals.opened[0]
                assert server.wait(PATIENCE) == 0, last_words(log)
                terminals.type([*command, "--out", "runs/simulated"])
            else:
                terminals.type([digest[:12] if part == "DIGEST" else part for part in command])
    real, simulated = (coterie.load(tmp_path / "runs" / name).summary for name in ("real", "simulated"))
    assert len(terminals.opened) == 3
    assert real.existing.as_is.mean == pytest.approx(simulated.existing.as_is.mean, abs=0.003)
    assert real.existing.as_is.mean > 0.9
    assert real.train_loss == pytest.approx(simulated.train_loss, rel=1e-4)
    for name in ("anna", "emil"):
        assert oct((tmp_path / name).stat().st_mode & 0o777) == "0o700"
        assert coterie.load(tmp_path / name).model().classes
