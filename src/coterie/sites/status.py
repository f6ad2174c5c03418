"""The state of a run with real sites, from its folder, and of a server, from its address."""

import socket
import ssl
from collections import Counter
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from filelock import FileLock, Timeout

from coterie.clients.wire import shown
from coterie.errors import StoppedError, UserError
from coterie.sites import certs
from coterie.storage.folder import read_history, read_summary
from coterie.storage.origin import ROUNDS, read_origin

TIMEOUT = 5.0


def of_run(folder: Path) -> list[str]:
    """Return sentences about a run, from its folder on the server."""
    origin = read_origin(folder)
    number = (folder / ROUNDS).read_bytes().count(b"\n")
    history = read_history(folder, number)
    if read_summary(folder) is not None:
        state = "has ended"
    else:
        state = "runs" if _is_locked(folder / ".lock") else "does not run; `coterie server --resume` continues it"
    method, rounds = origin.recipe["method"]["name"], origin.recipe["run"]["rounds"]
    told = [f"{folder} {state}: {number:,} of {rounds:,} rounds of {method}"]
    if history:
        last = datetime.fromtimestamp((folder / ROUNDS).stat().st_mtime, UTC)
        loss = "" if history[-1].train_loss is None else f", loss {history[-1].train_loss:.4f}"
        told.append(f"last round: {last.isoformat(timespec='seconds')}{loss}")
    evaluated = [record for record in history if record.eval is not None]
    for record in evaluated[-1:]:
        assert record.eval is not None
        if (mean := record.eval.existing.as_is.mean) is not None:
            told.append(f"mean score of the sites' models after round {record.round:,}: {mean:.4f}")
    used = Counter(name for record in history for name in record.cohort if name not in record.refused)
    refused = {name: why for record in history for name, why in record.refused.items()}
    for name in sorted({*used, *refused}):
        why = f"; last reply that was not used: {refused[name]}" if name in refused else ""
        told.append(f"{name}: {used[name]:,} replies{why}")
    return told


def of_address(address: str) -> list[str]:
    """Return sentences about the server at HOST:PORT. Raises StoppedError if there is none."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not port.isascii() or not 0 < int(port[:6]) < 65536:
        raise UserError(f"an address is HOST:PORT, for example fl.example.org:8443, not {address!r}")
    place = (host.strip("[]"), int(port))
    try:
        certificate = ssl.get_server_certificate(place, timeout=TIMEOUT)
    except (ssl.SSLError, ConnectionResetError):
        return [f"{address} answers, without TLS: {_first_line(place, None)}"]
    except (OSError, UnicodeError) as error:
        raise StoppedError(f"nobody answers at {address}: {getattr(error, 'strerror', None) or error}") from None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it only tells; couriers check the certificate
    told = f"{address} answers with TLS: {_first_line(place, context)}"
    try:
        names, expires = certs.names_in(certificate)
    except ValueError:
        return [told, "its certificate cannot be read"]
    return [told, f"certificate for {shown(', '.join(names))}, valid until {expires.date()}"]


def _first_line(place: tuple[str, int], context: ssl.SSLContext | None) -> str:
    try:
        raw = socket.create_connection(place, timeout=TIMEOUT)
        with context.wrap_socket(raw) if context else raw as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            answer = b"".join(islice(iter(lambda: connection.recv(1000), b""), 100)).decode(errors="replace")
    except OSError as error:
        return f"not a Coterie server ({error.strerror or error})"
    is_ours = "a server of Coterie" in answer
    return "the gateway of a Coterie server" if is_ours else f"not a Coterie server ({answer[:80] or 'no answer'!r})"


def _is_locked(file: Path) -> bool:
    try:
        with FileLock(file, timeout=0):
            return False
    except Timeout:
        return True
