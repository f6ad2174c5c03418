"""Keeps the processes of a server running: what ends is started again, and nothing outlives this process."""

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PAUSES = (0.1, 0.5, 2.0, 5.0)
"""Seconds before a process that has ended is started again, longer each time that it ends within `STEADY` seconds."""
STEADY = 20.0
LOG_LIMIT = 4 << 20
"""Size of a log, in bytes, from which it is put aside at the next start."""


@dataclass
class Child:
    """A process that is to be kept running."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    """File for what it says on stderr, and on stdout unless `heard` is given."""
    heard: Callable[[str], None] | None = None
    """What is called with each line on stdout."""
    descriptors: tuple[int, ...] = ()
    """Files that are open in it, too."""
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    ends: int = 0
    """How many times in a row it has ended soon after its start."""
    due: float = 0.0
    listener: threading.Thread | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start the process."""
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            self.log.replace(self.log.with_suffix(".old.log"))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603
                self.command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log if self.heard is None else subprocess.PIPE,
                stderr=log,
                pass_fds=self.descriptors,
                start_new_session=True,  # Ctrl+C is for the server alone, which ends its processes in order
            )
        self.started = time.monotonic()
        if self.heard is not None:
            self.listener = threading.Thread(target=self._listen, args=(self.process,), daemon=True)
            self.listener.start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert self.heard is not None
        with process.stdout:
            for line in process.stdout:
                self.heard(line.decode(errors="replace"))

    def end(self) -> None:
        """End the process, in order if it does so soon."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.listener is not None:
            self.listener.join()

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-2000:].strip() if self.log.exists() else ""


class Children:
    """The processes of this server, started and watched by one thread.

    One thread has to start them all, because on Linux they end with the thread that has started them.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._children: list[Child] = []
        self._wake, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="coterie-children", daemon=True)
        self._thread.start()

    def add(self, child: Child) -> None:
        """Start a process, and keep it running."""
        self._children.append(child)
        self._wake.set()

    def close(self) -> None:
        """End all processes, the last one first."""
        self._closed = True
        self._wake.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed:
            for child in list(self._children):
                self._look_after(child)
            self._wake.wait(0.1)
            self._wake.clear()
        for child in reversed(self._children):
            child.end()

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.process is not None and (status := child.process.poll()) is not None:
            child.ends = child.ends + 1 if now - child.started < STEADY else 0
            child.due = now + PAUSES[min(child.ends, len(PAUSES) - 1)]
            child.process = None
            self._told(f"the {child.name} has ended ({_why(status)}) and is started again; its log is {child.log}")
        if child.process is None and now >= child.due and not self._closed:
            child.start()


def _why(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}"
