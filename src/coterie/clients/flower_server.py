"""The server's end of the way over Flower: it starts the SuperLink and the gateway, and asks sites.

In `folder`, which only its owner can read, are the SuperLink's database, the secret with which this process takes its
run, and `link.json` with the run's token. After a SIGKILL, the next `FlowerTransport` on the same folder continues in
the same Flower run, if it starts within the lease of 60 s. Otherwise it submits a new one. The processes that this one
has started end with it, and the next one starts them again on the same database.

Sites are known by their keys. Flower checks the signature of every call of a courier, also where the outer connection
has no TLS, because the inner connection between gateway and SuperLink always has it. The roster says which name belongs
to which key. Nothing that a site says about itself is used.
"""

import json
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
from filelock import FileLock, Timeout

from coterie.clients import flower_version
from coterie.clients.flower_asking import Asking
from coterie.clients.flower_children import Child, Children
from coterie.clients.flower_command import child_command
from coterie.clients.flower_keys import inner_certificate, to_pem, write_private
from coterie.clients.flower_link import UNREACHABLE, Link, Node, RunEndedError, Token
from coterie.clients.transport import Failure, Transport, is_loopback, never
from coterie.errors import UserError

GATEWAY = "coterie.clients.flower_gateway"
START = 120.0
"""Seconds that the SuperLink may take to start. On a busy machine, it takes ten."""
BEAT = 5.0
"""Seconds between two heartbeats of the run. It ends after 60 s without one."""
PARTS = ("ca.crt", "server.crt", "server.key")
"""Files of a TLS folder, as `coterie certs new` makes it."""


def quiet(sentence: str) -> None:
    """Ignore what is told."""


class FlowerTransport(Transport):
    """A connection to sites over Flower. Use it from one thread at a time.

    `listen` is HOST:PORT; with port 0, a free one is chosen (see `address`). `tls` is a folder as `coterie certs new`
    makes it. Without it, other machines may not connect, unless `exposed` permits it. `roster` returns the name of each
    public key in OpenSSH form. It is called again before each question, so that sites can be added and removed at any
    time. `resume` keeps the database of an earlier process. Each sentence about what happens is passed to `told`.
    """

    def __init__(
        self,
        folder: Path,
        listen: str,
        tls: Path | None,
        roster: Callable[[], Mapping[str, str]],
        resume: bool = False,
        *,
        exposed: bool = False,
        limit: int = 1 << 30,
        told: Callable[[str], None] = quiet,
    ) -> None:
        flower_version.check()
        self._folder, self._roster, self._limit, self._told = folder, roster, limit, told
        self._names: dict[bytes, str] = {}
        self._synchronized: Mapping[str, str] | None = None
        self._unanswered: dict[str, float] = {}
        self._ended, self._closing = threading.Event(), threading.Event()
        with ExitStack() as cleanup:
            self._hold_folder(cleanup, resume)
            outside = open_port(listen, tls, exposed)
            cleanup.enter_context(outside)
            host, port = outside.getsockname()[:2]
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            """Where couriers connect, as HOST:PORT."""
            self._children = Children(told)
            cleanup.callback(self._children.close)
            self._start_link(cleanup)
            self._synchronize()
            self._take_run()
            beating = threading.Thread(target=self._beat, name="coterie-heartbeat", daemon=True)
            beating.start()
            cleanup.callback(beating.join)
            cleanup.callback(self._closing.set)
            self._start_gateway(outside, tls)
            self._cleanup = cleanup.pop_all()

    def connected(self) -> set[str]:
        """Return the names of the sites whose couriers are connected."""
        try:
            self._synchronize()
            return set(self._nodes())
        except UNREACHABLE:
            return set()
        except RunEndedError:
            self._ended.set()
            return set()

    def ask(
        self, requests: Mapping[str, bytes], seconds: float, enough: Callable[[set[str]], bool] = never
    ) -> Iterator[tuple[str, bytes | Failure]]:
        """Send each site its request, and yield replies in the order in which they come."""
        requests, known = dict(requests), set(self._roster().values())
        for name in requests.keys() - known:
            del requests[name]
            yield name, Failure("unknown", f"no site of this server is called {name}")
        for name in [name for name, content in requests.items() if len(content) > self._limit]:
            yield name, Failure("too large", f"a request of {len(requests.pop(name))} bytes, more than {self._limit}")
        asking = Asking(self._link, requests, seconds, self._nodes, self._limit)
        try:
            yield from self._ask(asking, enough)
            for name in asking.waiting:
                yield name, asking.failure(name, seconds)
        finally:
            with suppress(*UNREACHABLE, RunEndedError):
                self._unanswered = asking.clean_up(self._unanswered)

    def _ask(self, asking: Asking, enough: Callable[[set[str]], bool]) -> Iterator[tuple[str, bytes | Failure]]:
        answered: set[str] = set()
        while asking.waiting and not asking.late() and not enough(answered):
            try:
                self._synchronize()
                if self._ended.is_set():
                    self._renew()
                    asking.start_over()
                for name, answer in asking.step():
                    if not isinstance(answer, Failure):
                        answered.add(name)
                    yield name, answer
            except UNREACHABLE as error:  # the SuperLink is being started again
                if isinstance(error, httpx.HTTPStatusError):
                    self._told(f"the SuperLink has failed in a call, which is repeated: {error}")
                time.sleep(0.3)
            except RunEndedError:
                self._ended.set()

    def close(self) -> None:
        """End the run, the gateway and the SuperLink."""
        if self._closing.is_set():
            return
        with suppress(*UNREACHABLE, RunEndedError):
            self._link.finish()
        (self._folder / "link.json").unlink(missing_ok=True)
        self._cleanup.close()

    def _hold_folder(self, cleanup: ExitStack, resume: bool) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        lock = FileLock(self._folder / ".lock")
        try:
            cleanup.enter_context(lock.acquire(timeout=0))
        except Timeout:
            raise UserError(f"another server uses {self._folder} already; end it, or use another folder") from None
        if not resume:
            for file in (*self._folder.glob("link.db*"), self._folder / "link.json"):
                file.unlink(missing_ok=True)

    def _start_link(self, cleanup: ExitStack) -> None:
        """Start the SuperLink, and wait until it answers."""
        certificate, key = inner_certificate(self._folder)
        secret, port = secrets.token_hex(32).encode(), free_port()
        write_private(self._folder / "secret", secret)
        files = {"--ssl-ca-certfile": certificate, "--ssl-certfile": certificate, "--ssl-keyfile": key}
        files |= {"--database": self._folder / "link.db", "--superexec-auth-secret-file": self._folder / "secret"}
        arguments = [part for option, file in files.items() for part in (option, str(file.absolute()))]
        arguments += ["--host", "127.0.0.1", "--port", str(port), "--isolation", "process", "--enable-supernode-auth"]
        command = child_command("superlink", *arguments)
        environment = flower_version.environment(self._folder.absolute() / "flower")
        child = Child("SuperLink", command, environment, self._folder / "superlink.log")
        self._upstream, self._inner = f"https://127.0.0.1:{port}", certificate
        self._link = Link(port, certificate, secret)
        cleanup.callback(self._link.close)
        self._children.add(child)
        wait_for(self._link.answers, child)

    def _start_gateway(self, outside: socket.socket, tls: Path | None) -> None:
        """Open the outer port, and wait until it answers."""
        listening = threading.Event()

        def heard(line: str) -> None:
            try:
                event = json.loads(line)
            except ValueError:
                return
            if event["event"] == "listening":
                listening.set()
            else:
                self._told(event["text"])

        security = [] if tls is None else ["--certificate", str(tls / "server.crt"), "--key", str(tls / "server.key")]
        upstream = ["--upstream", self._upstream, "--upstream-ca", str(self._inner)]
        command = child_command(GATEWAY, "--fd", str(outside.fileno()), *upstream, *security)
        descriptors = (outside.fileno(),)
        child = Child("gateway", command, dict(os.environ), self._folder / "gateway.log", heard, descriptors)
        self._children.add(child)
        wait_for(listening.is_set, child)

    def _synchronize(self) -> None:
        """Register the keys that are new in the roster, and unregister those that are no longer in it."""
        roster = dict(self._roster())
        if roster == self._synchronized:
            return
        names = {to_pem(key): name for key, name in roster.items()}
        registered = self._link.registered()
        for key, name in names.items():
            if key not in registered:
                self._link.register(key)
            elif not registered[key][1]:
                self._told(f"the key of {name} was removed earlier, and cannot be used again: make a new one")
        for key, (node, valid) in registered.items():
            if valid and key not in names:
                self._link.unregister(node)
        self._names, self._synchronized = names, roster

    def _nodes(self) -> dict[str, Node]:
        """Return the connected couriers by the names of their sites."""
        return {self._names[node.key]: node for node in self._link.nodes() if node.key in self._names}

    def _take_run(self) -> None:
        """Continue in the run of an earlier process, or submit a new one."""
        try:
            state = json.loads((self._folder / "link.json").read_text())
            self._link.go_on(Token(state["run"], state["token"]))
            self._link.heartbeat()
        except (FileNotFoundError, ValueError, KeyError, TypeError, RunEndedError):
            self._renew()
        else:
            self._told("continued in the same Flower run")

    def _renew(self) -> None:
        token = self._link.submit()
        self._ended.clear()
        self._unanswered.clear()  # they are messages of the earlier run
        write_private(self._folder / "link.json", json.dumps(token._asdict()).encode())
        self._told("submitted a new Flower run")

    def _beat(self) -> None:
        while not self._closing.wait(BEAT):
            try:
                self._link.heartbeat()
            except UNREACHABLE:
                continue
            except RunEndedError:
                self._ended.set()


def wait_for(ready: Callable[[], bool], child: Child) -> None:
    """Wait until a process is ready. Raises `UserError` with its last words if it ends again and again."""
    end = time.monotonic() + START
    while not ready():
        if child.ends >= 2 or time.monotonic() > end:
            raise UserError(f"the {child.name} does not start: {child.last_words()}")
        time.sleep(0.05)


def free_port() -> int:
    """Return a port of this machine that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def open_port(listen: str, tls: Path | None, exposed: bool) -> socket.socket:
    """Open the outer port. Raises `UserError` if that is not possible, or not safe."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise UserError(f"an address is HOST:PORT, for example 0.0.0.0:8443, not {listen!r}")
    if tls is not None:
        check_tls(tls)
    elif not is_loopback(host) and not exposed:
        raise UserError(f"without TLS, only this machine may connect: use 127.0.0.1:{port}, or certificates")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family, backlog=256)
    except OSError as error:
        raise UserError(
            f"cannot listen at {listen}: {error.strerror or error}; choose another address or port"
        ) from None


def check_tls(folder: Path) -> None:
    """Raise `UserError` unless the folder has a certificate and its private key."""
    for name in PARTS:
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: make the folder with `coterie certs new {folder} --for HOST`")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "server.crt", folder / "server.key")
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"server.crt and server.key in {folder} cannot be used together: {error}") from None
