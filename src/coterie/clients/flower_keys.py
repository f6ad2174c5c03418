"""Public keys of sites, and the certificate of the server's inner connections."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.errors import UserError


def to_pem(openssh: str) -> bytes:
    """Return a public key in the form in which Flower keeps it. Raises `UserError` if Flower does not take it."""
    try:
        key = serialization.load_ssh_public_key(openssh.strip().encode())
    except ValueError as error:
        raise UserError(f"this is not a public key in OpenSSH form: {openssh[:40]}... ({error})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"sites need an EC key, as `coterie certs site` makes it, not {openssh.split()[0]}")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def inner_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1, and return its file and that of its private key.

    It is made again at each start, and only processes on this machine that can read `folder` use it. Flower checks the
    keys of its nodes only behind TLS, so the inner connections have it even where the outer one does not.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "coterie inner connection")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "inner.crt", folder / "inner.key"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    write_private(
        private,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    return public, private


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read, so that it is there either as a whole or not at all."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)
