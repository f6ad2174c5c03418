"""The courier of a site as a child process: it is started again when it ends, unless that cannot help."""

import json
import logging
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from coterie.clients.flower_command import courier_command
from coterie.clients.flower_tell import EXITS
from coterie.clients.flower_version import environment

logger = logging.getLogger("coterie")
PAUSE = 1.0
"""Seconds before a courier that ended is started again."""


class Courier:
    """A courier that is kept running in the background."""

    def __init__(
        self,
        server: str,
        key: Path,
        socket: Path,
        state: Path,
        ca: Path | None,
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        """Take the arguments of `courier_command`. `on_end` is called if the courier ends for good."""
        self.verdict = ""
        """Why the courier has ended for good; empty as long as it is started again."""
        self._arguments = (server, key, socket, state, ca)
        self._on_end = on_end
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._carry, name="courier", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if (process := self._process) is not None and process.poll() is None:
            process.terminate()
        self._thread.join(timeout=10)

    def wait(self) -> None:
        """Wait until the courier ends for good."""
        self._thread.join()

    def _carry(self) -> None:
        try:
            self._keep()
        except OSError as error:
            self.verdict = (
                f"The courier cannot use its folder {self._arguments[3]}: {error}. Make room or repair the folder, "
                "and start the site again."
            )
            self._on_end()

    def _keep(self) -> None:
        state = self._arguments[3]
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        while not self._stopping.is_set():
            code = self._once(state)
            if self._stopping.is_set():
                return
            if code in EXITS and code != 0:
                self.verdict = EXITS[code]
                self._on_end()
                return
            logger.warning("the courier ended with code %d and is started again", code)
            self._stopping.wait(PAUSE)

    def _once(self, state: Path) -> int:
        with (state / "courier.log").open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - a command of our own
                courier_command(*self._arguments),
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                env=environment(state / "flower"),
                text=True,
            )
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self._heard(line)
            return self._process.wait()

    def _heard(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            return
        if event.get("event") != "carried":  # the site process tells about its replies
            logger.info("courier: %s", event.get("text") or event.get("event"))
