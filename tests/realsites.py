"""Keys, certificates and processes for tests of the transport. Everything is ended in the end."""

import datetime
import ipaddress
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.clients.flower_command import courier_command

HERE = Path(__file__).parent / "sites"
PATIENCE = 60.0
"""Seconds after which a test gives up. Nothing is expected to take that long."""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def new_key(file: Path) -> str:
    """Write a private key to `file`, and return its public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


def new_tls(folder: Path, names: list[str], days: int = 2) -> Path:
    """Make a CA and a server certificate for names and addresses. With negative `days`, it has expired."""
    folder.mkdir()
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"CA of {folder.name}")])
    server = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=5)
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)

    def builder(
        subject: x509.Name, public: ec.EllipticCurvePublicKey, last: datetime.datetime
    ) -> x509.CertificateBuilder:
        named = x509.CertificateBuilder().subject_name(subject).issuer_name(authority).public_key(public)
        return named.serial_number(x509.random_serial_number()).not_valid_before(start).not_valid_after(last)

    forever = start + datetime.timedelta(days=100)
    ca = builder(authority, ca_key.public_key(), forever).add_extension(x509.BasicConstraints(True, 0), True)
    alternatives = x509.SubjectAlternativeName([_name(name) for name in names])
    leaf = builder(server, key.public_key(), end).add_extension(alternatives, False)
    files = {"ca.crt": ca.sign(ca_key, hashes.SHA256()), "server.crt": leaf.sign(ca_key, hashes.SHA256())}
    for name, certificate in files.items():
        (folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Site:
    """A site process that echoes, and its courier."""

    def __init__(self, folder: Path, name: str, server: str, ca: Path | None = None, host: str | None = None) -> None:
        self.folder, self.name, self.ca = folder / name, name, ca
        self.server = server if host is None else f"{host}:{server.rpartition(':')[2]}"
        self.public = new_key(self.folder / "key")
        self.courier: subprocess.Popen[bytes] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 0.0) -> "Site":
        """Start both processes. The site process takes `seconds` for an answer."""
        self.start_process(seconds)
        self.start_courier()
        return self

    def start_process(self, seconds: float = 0.0) -> None:
        arguments = [str(self.socket), self.name, str(seconds), str(self.folder / "asked")]
        self.process = subprocess.Popen([sys.executable, "-I", str(HERE / "echo_site.py"), *arguments])

    @contextmanager
    def taking(self, seconds: float) -> Iterator[None]:
        """Replace the site process by one that takes longer, and back."""
        self.restart_process(seconds)
        yield
        self.restart_process()

    def restart_process(self, seconds: float = 0.0) -> None:
        """Kill the site process, and start another one."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.start_process(seconds)

    def start_courier(self, *more: str) -> None:
        command = courier_command(self.server, self.folder / "key", self.socket, self.folder / "courier", self.ca)
        with (self.folder / "events").open("ab") as events:
            self.courier = subprocess.Popen([*command, *more], stdout=events, stderr=events)

    @property
    def socket(self) -> Path:
        return self.folder / "s" / "s"

    def asked(self) -> int:
        """Return how many requests have reached the site process."""
        file = self.folder / "asked"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def events(self) -> list[dict[str, object]]:
        """Return what the courier has told. Anything else on its stdout or stderr is an error."""
        return [json.loads(line) for line in (self.folder / "events").read_text().splitlines()]

    def exit_code(self) -> int:
        """Wait for the end of the courier."""
        assert self.courier is not None
        return self.courier.wait(timeout=PATIENCE)

    def stop(self) -> None:
        for process in (self.courier, self.process):
            if process is not None:
                process.terminate()
                try:
                    process.wait(timeout=10)
                finally:
                    process.kill()
                    process.wait()


@contextmanager
def sites(*all_sites: Site) -> Iterator[None]:
    """Stop sites in the end."""
    try:
        yield
    finally:
        for site in all_sites:
            site.stop()
