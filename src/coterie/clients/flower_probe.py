"""What a courier checks before it connects: its key, and whether the server is the one that it expects."""

import socket
import ssl
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.clients.flower_tell import Exit, leave, tell


def probe(server: str, ca: Path | None) -> None:
    """Wait for the server, and leave with a sentence if it and this courier do not agree about TLS."""
    host, _, port = server.rpartition(":")
    host, pause, told = host.strip("[]"), 0.1, False
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=10) as raw:
                return probe_plain(raw) if ca is None else probe_tls(raw, host, ca)
        except (OSError, ssl.SSLEOFError) as error:
            if not told:
                tell("waiting", f"waiting for the server at {server}: {error}")
            told = True
        time.sleep(pause)
        pause = min(1.5 * pause, 3.0)


def probe_plain(raw: socket.socket) -> None:
    """Leave if the server does not speak HTTP without TLS."""
    raw.sendall(b"GET / HTTP/1.0\r\n\r\n")
    if raw.recv(5) != b"HTTP/":
        leave(Exit.NEEDS_TLS, "the server uses TLS: start with --ca and its CA certificate instead of --insecure")


def probe_tls(raw: socket.socket, host: str, ca: Path) -> None:
    """Leave if the server has no certificate of this CA for this name."""
    try:
        context = ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        leave(Exit.BAD_FILE, f"cannot read the CA certificate {ca}: {error}")
    try:
        with context.wrap_socket(raw, server_hostname=host):
            return
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        if error.verify_code in (9, 10):
            leave(Exit.EXPIRED, f"the server's certificate is not valid today: {why}; are the clocks right?")
        if error.verify_code in (62, 64):
            leave(Exit.WRONG_NAME, f"the server's certificate is not for {host}: {why}")
        leave(Exit.WRONG_CA, f"the server's certificate is not signed by {ca}: {why}")
    except ssl.SSLEOFError:
        raise
    except ssl.SSLError as error:
        leave(Exit.NO_TLS, f"the server does not use TLS ({error.reason}): is this the right address?")


def load_key(file: Path) -> Any:
    """Load a private key, in OpenSSH or PEM form."""
    try:
        content = file.read_bytes()
        load = serialization.load_ssh_private_key if b"OPENSSH" in content else serialization.load_pem_private_key
        key: Any = load(content, password=None)
    except (OSError, ValueError, TypeError) as error:
        leave(Exit.BAD_FILE, f"cannot read the key {file}: {error}")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        leave(Exit.BAD_FILE, f"{file} is not an EC key, as `coterie certs site` makes it")
    return key
