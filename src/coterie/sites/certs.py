"""Certificates of a server and keys of sites.

A server has a certificate authority (CA) of its own, which signs its certificate. Sites get the file ca.crt, and accept
only a server whose certificate was signed with ca.key. A site proves who it is with a key pair, which it makes itself:
the private key never leaves it, and the server's operator adds the public one to the list of sites.
"""

import base64
import hashlib
import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from coterie.errors import UserError
from coterie.sites.names import check_name
from coterie.storage.files import PRIVATE, PUBLIC, make_private, sync_folder, write_atomically, write_durably

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise UserError("certificates and keys need cryptography: pip install 'coterie[flower]'") from None

CA, CA_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.crt", "server.key"
"""Names of the files in a folder of certificates."""
DAYS = 825
"""Default number of days for which a server's certificate is valid. Clients of some systems refuse longer ones."""
_CA_DAYS = 3653
"""Number of days for which a CA is valid: ten years."""
_EARLY = timedelta(days=1)
"""How long before they were made certificates begin to be valid, because the clocks of sites may be late."""
_DNS_NAME = re.compile(
    r"(?=.{1,253}$)(\*\.)?([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
_UNREADABLE = (
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
    TypeError,
)
"""Errors of cryptography for a damaged certificate, besides ValueError."""
_LONGEST = 100_000
"""Maximum number of bytes of a file with a certificate or a key."""


class Description(NamedTuple):
    """What is in a folder of certificates."""

    folder: Path
    names: tuple[str, ...]
    """DNS names and IP addresses under which sites can reach the server."""
    begins: datetime
    expires: datetime
    """End of the server's certificate. `renew` makes a new one, and sites keep their ca.crt."""
    ca_expires: datetime
    ca_fingerprint: str
    """SHA-256 of the CA's certificate, by which a site can check on the phone that it got the right ca.crt."""


class SiteKey(NamedTuple):
    """The files of a new key pair."""

    private: Path
    public: Path


def now() -> datetime:
    """Return the time by which certificates are made and checked."""
    return datetime.now(UTC)


def new(folder: Path, names: Sequence[str], days: int = DAYS) -> Description:
    """Make a CA, and a certificate for the server that sites reach under these DNS names and IP addresses."""
    subjects = _subjects(names)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder} exists and is not an empty folder; choose another. `coterie certs renew {folder}` makes a new "
            "certificate for a server that has one"
        )
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Coterie CA {serial % 16**8:08x}")])
    ca = (
        _builder(name, name, ca_key.public_key(), ca_key.public_key(), now() + timedelta(days=_CA_DAYS))
        .serial_number(serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA384())
    )
    make_private(folder)
    for file, content, mode in (
        (CA_KEY, _pem(ca_key), PRIVATE),
        (CA, ca.public_bytes(serialization.Encoding.PEM), PUBLIC),
        (SERVER_KEY, _pem(key), PRIVATE),
        (SERVER, _server(ca, ca_key, key.public_key(), subjects, days), PUBLIC),
    ):
        write_durably(folder / file, [content], mode)
    sync_folder(folder)
    return describe(folder)


def renew(folder: Path, names: Sequence[str] = (), days: int = DAYS) -> Description:
    """Replace the certificate of a server by a new one, with the same CA and key, and the same names by default."""
    old = describe(folder)
    subjects = _subjects(names or old.names)
    ca, ca_key, key = _certificate(folder / CA), _private_key(folder / CA_KEY), _private_key(folder / SERVER_KEY)
    if ca.public_key() != ca_key.public_key():
        raise UserError(f"{folder / CA_KEY} is not the key of {CA}; restore both from a backup")
    if ca.not_valid_after_utc < now():
        raise UserError(
            f"{folder / CA} has expired on {_day(ca.not_valid_after_utc)}: make a new folder with `coterie certs new`, "
            f"and give its {CA} to all sites"
        )
    write_atomically(folder / SERVER, _server(ca, ca_key, key.public_key(), subjects, days))
    return describe(folder)


def describe(folder: Path) -> Description:
    """Describe a folder of certificates. Raises UserError if a file is missing, damaged or does not fit the others."""
    ca, server = _certificate(folder / CA), _certificate(folder / SERVER)
    if server.public_key() != _private_key(folder / SERVER_KEY).public_key():
        raise UserError(f"{folder / SERVER_KEY} is not the key of {SERVER}; restore both from a backup")
    for file, certificate in ((CA, ca), (SERVER, server)):
        try:
            certificate.verify_directly_issued_by(ca)
        except (ValueError, TypeError, InvalidSignature):
            raise UserError(f"{folder / file} was not signed by the CA of {CA}; restore both from a backup") from None
    return Description(
        folder,
        _names(server),
        server.not_valid_before_utc,
        server.not_valid_after_utc,
        ca.not_valid_after_utc,
        ca.fingerprint(hashes.SHA256()).hex(),
    )


def check(folder: Path, names: Sequence[str] = ()) -> Description:
    """Describe a folder of certificates. Raises UserError unless it is valid today, for all of these names."""
    found, today = describe(folder), now()
    for file, expires, what in (
        (CA, found.ca_expires, "`coterie certs new` makes a new folder, whose ca.crt all sites need"),
        (SERVER, found.expires, f"`coterie certs renew {folder}` makes a new one"),
    ):
        if expires < today:
            raise UserError(f"{folder / file} has expired on {_day(expires)}; {what}")
    if found.begins > today:
        raise UserError(f"{folder / SERVER} is not valid before {_day(found.begins)}; check the clock of this machine")
    for name in _subjects(names) if names else ():
        if not any(_covers(own, name) for own in found.names):
            raise UserError(
                f"{folder / SERVER} is for {', '.join(found.names)}, not for {name}; `coterie certs renew {folder}` "
                "with --for NAME for each name makes a new one"
            )
    return found


def names_in(pem: str) -> tuple[tuple[str, ...], datetime]:
    """Return the names and addresses that a server certificate in PEM form is for, and when it expires."""
    certificate = _parsed(pem.encode())
    return _names(certificate), certificate.not_valid_after_utc


def site(folder: Path, name: str) -> SiteKey:
    """Make the key pair of a site. The files are in OpenSSH format, which Flower reads."""
    made = SiteKey(folder / f"{check_name(name)}.key", folder / f"{name}.pub")
    for file in made:
        if file.exists():
            raise UserError(f"{file} exists; choose another --out, or move it away if {name} really needs a new key")
    key = ec.generate_private_key(ec.SECP384R1())
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(made.private, content, PRIVATE)
    write_atomically(made.public, f"{_openssh(key.public_key())} {name}\n".encode())
    return made


def openssh(content: bytes, source: str = "this") -> str:
    """Return a public key in OpenSSH format without its comment. `content` is in OpenSSH or PEM format.

    Equal keys have equal texts. `source` names the file in error messages.
    """
    if b"PRIVATE KEY" in content:
        raise UserError(
            f"{source} is a private key, which must not leave its site: make a new pair there with `coterie certs "
            "site NAME`, and use NAME.pub"
        )
    load = serialization.load_pem_public_key if b"-----BEGIN" in content else serialization.load_ssh_public_key
    try:
        key = load(content)
    except (ValueError, UnsupportedAlgorithm):
        raise UserError(f"{source} is not a public key; `coterie certs site NAME` makes one, as NAME.pub") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UserError(f"{source} is not a key for the curve P-384; `coterie certs site NAME` makes one, as NAME.pub")
    return _openssh(key)


def read_public_key(file: Path) -> str:
    """Read the public key of a site, and return it in OpenSSH format without its comment."""
    return openssh(_read(file), str(file))


def fingerprint(key: str) -> str:
    """Return the fingerprint of a public key in OpenSSH format, as `ssh-keygen -l` shows it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _subjects(names: Sequence[str]) -> dict[str, x509.GeneralName]:
    """Return what a certificate calls each of these names. Raises UserError if one is no DNS name or IP address."""
    if not names:
        raise UserError("a certificate needs the names or addresses under which sites reach the server: --for NAME")
    found: dict[str, x509.GeneralName] = {}
    for name in names:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            found[_dns_name(name)] = x509.DNSName(_dns_name(name))
        else:
            found[str(address)] = x509.IPAddress(address)
    return found


def _dns_name(name: str) -> str:
    low = name.lower().removesuffix(".")
    if not _DNS_NAME.fullmatch(low) or low.replace(".", "").isdigit():
        raise UserError(
            f"{name[:300]!r} is neither a DNS name nor an IP address; write it as in server.example.org or 192.0.2.7, "
            "without https:// and without a port"
        )
    return low


def _server(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    subjects: dict[str, x509.GeneralName],
    days: int,
) -> bytes:
    """Return a certificate for a server, signed by the CA."""
    common = next((name for name in subjects if len(name) <= 64), "Coterie server")  # a common name cannot be longer
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    expires = min(now() + timedelta(days=days), ca.not_valid_after_utc)
    made = (
        _builder(subject, ca.subject, key, ca_key.public_key(), expires)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectAlternativeName(subjects.values()), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuers_key: ec.EllipticCurvePublicKey,
    expires: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .not_valid_before(now() - _EARLY)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuers_key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def _covers(own: str, name: str) -> bool:
    """Return whether a name of a certificate, such as *.example.org, is for a name."""
    return own == name or (own.startswith("*.") and own[1:] == name[name.find(".") :] and not name.startswith("."))


def _certificate(file: Path) -> x509.Certificate:
    try:
        return _parsed(_read(file))
    except UserError:
        raise
    except ValueError:
        raise UserError(f"{file} is damaged or not a certificate in PEM format; restore it from a backup") from None


def _parsed(pem: bytes) -> x509.Certificate:
    """Return a certificate of which every part can be read, which cryptography does only on demand.

    Raises ValueError if that is not possible.
    """
    try:
        found = x509.load_pem_x509_certificate(pem)
        found.public_key()
        _names(found)
        _ = found.subject, found.issuer, found.signature_hash_algorithm
        _ = found.not_valid_before_utc, found.not_valid_after_utc
    except _UNREADABLE as error:
        raise ValueError(str(error)) from None
    return found


def _private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    content = _read(file)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{file} is damaged or not a private key made by `coterie certs`; restore it from a backup")
    return key


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_LONGEST)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; `coterie certs` makes certificates and keys") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _openssh(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def _day(time: datetime) -> str:
    return time.date().isoformat()
