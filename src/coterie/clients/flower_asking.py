"""One round of questions to sites, on the server's side."""

import time
from collections.abc import Callable, Iterator, Mapping

from coterie.clients.flower_link import UNREACHABLE, Arriving, Link, Node
from coterie.clients.transport import Failure

OWN = {11: "refused", 12: "too large"}
"""Codes in replies of our own couriers. All others come from Flower: the message or the node was lost."""
REFRESH = 0.3
"""Seconds for which the list of connected nodes is used."""
AGAIN = 0.5
"""Seconds before a site is asked again, after Flower has lost a message."""


class Asking:
    """Requests that are being answered.

    A site is asked when its courier is connected, and again each time that its courier says, by activating its node,
    that it holds no message. The reply to any of these messages counts, and only the first one.
    """

    def __init__(
        self,
        link: Link,
        requests: Mapping[str, bytes],
        seconds: float,
        nodes: Callable[[], dict[str, Node]],
        limit: int,
    ) -> None:
        self._link, self._nodes, self._limit = link, nodes, limit
        self._end = time.monotonic() + seconds
        self.waiting = dict(requests)
        self._asked: dict[str, str] = {}
        self._due: dict[str, float] = {}
        self._open: dict[str, str] = {}
        self._arriving: list[tuple[str, Arriving]] = []
        self._connected: dict[str, Node] = {}
        self._refreshed = -REFRESH
        self._moved = time.monotonic()
        self._count = 0

    def late(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() >= self._end

    def start_over(self) -> None:
        """Ask all sites again, in a new run."""
        self._asked.clear()
        self._open.clear()
        self._arriving.clear()

    def step(self) -> Iterator[tuple[str, bytes | Failure]]:
        """Send what is due, and yield the replies that are complete. Waits a little if nothing happens."""
        moved = self._send()
        if self._open:
            for reply in self._link.replies(list(self._open)):
                moved = True
                if (name := self._open.pop(reply.question, None)) in self.waiting:
                    self._arriving.append((name, reply))
        arriving, self._arriving = self._arriving, []
        for number, (name, reply) in enumerate(arriving):
            try:
                answer = self._receive(name, reply)
            except UNREACHABLE:
                self._arriving += arriving[number:]
                raise
            if answer is not None and self.waiting.pop(name, None) is not None:
                moved = True
                yield name, answer
        self._wait(moved)

    def _send(self) -> bool:
        now = time.monotonic()
        if now - self._refreshed >= REFRESH:
            self._connected, self._refreshed = self._nodes(), now
        due = {
            name: node
            for name, node in self._connected.items()
            if name in self.waiting and self._asked.get(name) != node.activated and now >= self._due.get(name, 0)
        }
        if not due:
            return False
        requests = {node.id: self.waiting[name] for name, node in due.items()}
        self._count += 1
        sent = self._link.send(requests, max(self._end - now, 1.0), f"{self._count}-{now}")
        names = {node.id: name for name, node in due.items()}
        self._open |= {message: names[node] for message, node in sent.items()}
        for name, node in due.items():
            self._asked[name], self._due[name] = node.activated, now + AGAIN
        for name in due.keys() - {names[node] for node in sent.values()}:
            self._asked.pop(name)  # Flower did not take it: the site has just left
        return True

    def _receive(self, name: str, reply: Arriving) -> bytes | Failure | None:
        """Return a reply as soon as it is complete. Until then, keep it."""
        if reply.error is not None:
            code, reason = reply.error
            if code in OWN:
                return Failure(OWN[code], reason)  # type: ignore[arg-type]
            if name not in self._open.values():
                self._asked.pop(name, None)
            return None
        try:
            complete = self._link.fetch(reply, self._limit)
        except KeyError:
            self._asked.pop(name, None)
            return None
        if reply.size > self._limit:
            return Failure("too large", f"a reply of more than {self._limit} bytes")
        if not complete:
            self._arriving.append((name, reply))
            return None
        try:
            return reply.payload()
        except ValueError as error:
            return Failure("refused", str(error))

    def _wait(self, moved: bool) -> None:
        """Wait: short at first and while parts of a reply are missing, and longer the less happens."""
        now = time.monotonic()
        if moved:
            self._moved = now
        pause = 0.03 if self._arriving else min(max((now - self._moved) / 10, 0.05), 0.5)
        if self.waiting:
            time.sleep(max(min(pause, self._end - now), 0.0))

    def clean_up(self, earlier: Mapping[str, float]) -> dict[str, float]:
        """Delete what has not been answered, so that it does not fill the disk.

        `earlier` are messages of earlier questions with the times of their ends. Those to which a site may still reply,
        because their time is not over, are returned together with those of this question.
        """
        unanswered = {**earlier, **dict.fromkeys(self._open, self._end)}
        self._link.forget(unanswered, [reply.id for _, reply in self._arriving])
        return {message: end for message, end in unanswered.items() if end > time.monotonic()}

    def failure(self, name: str, seconds: float) -> Failure:
        """Return why a site that is still waited for has not answered."""
        if name in self._asked:
            return Failure("late", f"no reply within {seconds:g} s")
        return Failure("lost", f"not connected within {seconds:g} s")
