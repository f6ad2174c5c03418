"""Certificates are tried in real TLS handshakes, in memory."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from coterie.errors import UserError
from coterie.sites import certs

NAMES = ["Server.Example.org", "192.0.2.7", "2001:db8:0:0::1", "*.sites.example.org"]
TODAY = datetime(2030, 1, 15, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def tls(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "deep" / "tls"
    certs.new(folder, NAMES)
    return folder


def shake_hands(folder: Path, name: str, ca: Path) -> str:
    """Return the version of TLS by which a site that has `ca` connects to the server, with the strictest checks."""
    client, server = ssl.create_default_context(cafile=ca), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server.load_cert_chain(folder / certs.SERVER, folder / certs.SERVER_KEY)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(6):
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    version = ends[0].version()
    assert version is not None
    ends[0].write(b"hello")
    assert ends[1].read(5) == b"hello"
    return version


@pytest.mark.parametrize("name", ["server.example.org", "192.0.2.7", "2001:db8::1", "north.sites.example.org"])
def test_a_site_with_the_ca_accepts_the_server_under_each_of_its_names(tls, name):
    assert shake_hands(tls, name, tls / certs.CA) == "TLSv1.3"


@pytest.mark.parametrize("name", ["example.org", "192.0.2.8", "localhost", "a.north.sites.example.org"])
def test_a_site_refuses_the_server_under_another_name(tls, name):
    with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
        shake_hands(tls, name, tls / certs.CA)


def test_a_site_refuses_a_server_of_another_ca(tls, tmp_path):
    certs.new(tmp_path / "other", NAMES)
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake_hands(tls, "192.0.2.7", tmp_path / "other" / certs.CA)


def test_a_site_refuses_an_expired_certificate_until_it_is_renewed(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(certs, "now", lambda: datetime.now(UTC) - timedelta(days=40))
        certs.new(tmp_path / "tls", ["192.0.2.7"], days=30)
    kept_by_the_site = tmp_path / "ca.crt"
    kept_by_the_site.write_bytes((tmp_path / "tls" / certs.CA).read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(tmp_path / "tls", "192.0.2.7", kept_by_the_site)
    with pytest.raises(UserError, match=r"server\.crt has expired on .*certs renew"):
        certs.check(tmp_path / "tls")
    certs.renew(tmp_path / "tls")
    shake_hands(tmp_path / "tls", "192.0.2.7", kept_by_the_site)
    assert certs.check(tmp_path / "tls").names == ("192.0.2.7",)


def test_private_files_can_be_read_by_their_owner_only(tls):
    modes = {path.name: path.stat().st_mode & 0o777 for path in tls.iterdir()}
    assert set(modes) == {"ca.crt", "ca.key", "server.crt", "server.key"}
    assert modes["ca.key"] == modes["server.key"] == 0o600
    assert tls.stat().st_mode & 0o777 == 0o700


def test_the_dates_are_as_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(certs, "now", lambda: TODAY)
    made = certs.new(tmp_path / "tls", ["a.example"], days=90)
    assert made == certs.describe(tmp_path / "tls")
    assert made.names == ("a.example",)
    assert made.begins == TODAY - timedelta(days=1)
    assert made.expires == TODAY + timedelta(days=90)
    assert made.ca_expires.date().isoformat() == "2040-01-16"
    ca = x509.load_pem_x509_certificate((tmp_path / "tls" / "ca.crt").read_bytes())
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(True, 0)


def test_a_renewed_certificate_has_the_same_names_and_key_but_not_the_same_dates(tmp_path, monkeypatch):
    monkeypatch.setattr(certs, "now", lambda: TODAY)
    old = certs.new(tmp_path / "tls", NAMES)
    before = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    monkeypatch.setattr(certs, "now", lambda: TODAY + timedelta(days=100))
    new = certs.renew(tmp_path / "tls", days=10)
    after = {path.name: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    assert [name for name in before if before[name] != after[name]] == ["server.crt"]
    assert new == old._replace(begins=TODAY + timedelta(days=99), expires=TODAY + timedelta(days=110))
    assert certs.renew(tmp_path / "tls", ["b.example"]).names == ("b.example",)


def test_no_certificate_outlives_its_ca(tmp_path, monkeypatch):
    monkeypatch.setattr(certs, "now", lambda: TODAY)
    old = certs.new(tmp_path / "tls", ["a.example"])
    monkeypatch.setattr(certs, "now", lambda: old.ca_expires - timedelta(days=5))
    assert certs.renew(tmp_path / "tls").expires == old.ca_expires
    monkeypatch.setattr(certs, "now", lambda: old.ca_expires + timedelta(seconds=1))
    with pytest.raises(UserError, match=r"ca\.crt has expired on 2040-01-16: make a new folder"):
        certs.renew(tmp_path / "tls")
    with pytest.raises(UserError, match=r"ca\.crt has expired on 2040-01-16; .*all sites need"):
        certs.check(tmp_path / "tls")


def test_a_clock_that_is_wrong_is_named(tmp_path, monkeypatch):
    certs.new(tmp_path / "tls", ["a.example"])
    monkeypatch.setattr(certs, "now", lambda: datetime.now(UTC) - timedelta(days=2))
    with pytest.raises(UserError, match="check the clock"):
        certs.check(tmp_path / "tls")


def test_names_that_a_certificate_lacks_are_named(tls):
    certs.check(tls, ["SERVER.example.org", "192.0.2.7", "2001:db8::0:1", "x.sites.example.org"])
    for missing in ("127.0.0.1", "other.example.org", "sites.example.org", "x.y.sites.example.org", "localhost"):
        with pytest.raises(UserError, match=rf"not for {missing}; .*--for NAME"):
            certs.check(tls, ["192.0.2.7", missing])


@pytest.mark.parametrize("content", ["file", "folder with a file"])
def test_nothing_is_overwritten(tmp_path, content):
    folder = tmp_path / "tls"
    precious = folder if content == "file" else folder / "precious"
    precious.parent.mkdir(exist_ok=True)
    precious.write_text("kept")
    with pytest.raises(UserError, match="exists and is not an empty folder"):
        certs.new(folder, ["a.example"])
    assert precious.read_text() == "kept"
    assert sorted(tmp_path.rglob("*")) == sorted({folder, precious})


def test_an_empty_folder_is_used_and_made_private(tmp_path):
    certs.new(tmp_path, ["a.example"])
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "name",
    [
        *("https://a.example", "a.example:8443", "a b", "", "-a.example", "a..b", "*", "a.*.b", "256.1.1.1", "1.2"),
        *("\u00fc.de", "a_b", "x" * 64, ".".join(["x" * 60] * 5), "a.example\n", "a\0"),
    ],
)
def test_texts_that_are_no_names_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="neither a DNS name nor an IP address"):
        certs.new(tmp_path / "tls", ["a.example", name])
    assert not (tmp_path / "tls").exists()


def test_a_certificate_needs_a_name(tmp_path):
    with pytest.raises(UserError, match="--for NAME"):
        certs.new(tmp_path / "tls", [])


def test_a_long_name_is_not_cut_off(tmp_path):
    name = ".".join(["x" * 60] * 4)  # longer than a common name can be
    assert certs.new(tmp_path / "tls", [name]).names == (name,)


@pytest.mark.parametrize("file", ["ca.crt", "server.crt", "server.key"])
def test_a_missing_or_damaged_file_is_named(tmp_path, file):
    folder = tmp_path / "tls"
    certs.new(folder, ["a.example"])
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=rf"{file} is damaged"):
        certs.describe(folder)
    (folder / file).unlink()
    with pytest.raises(UserError, match=rf"{file} does not exist"):
        certs.describe(folder)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (["server.key"], r"server\.key is not the key of server\.crt"),
        (["ca.crt"], r"server\.crt was not signed by the CA of ca\.crt"),
        (["server.crt", "server.key"], r"server\.crt was not signed by the CA of ca\.crt"),
    ],
)
def test_files_of_different_folders_are_noticed(tmp_path, files, complaint):
    for folder in ("one", "other"):
        certs.new(tmp_path / folder, ["a.example"])
    for file in files:
        (tmp_path / "other" / file).replace(tmp_path / "one" / file)
    with pytest.raises(UserError, match=complaint):
        certs.describe(tmp_path / "one")


def test_a_certificate_is_only_renewed_with_the_key_of_its_ca(tmp_path):
    for folder in ("one", "other"):
        certs.new(tmp_path / folder, ["a.example"])
    (tmp_path / "other" / "ca.key").replace(tmp_path / "one" / "ca.key")
    certs.check(tmp_path / "one")  # which does not need that key
    with pytest.raises(UserError, match=r"ca\.key is not the key of ca\.crt"):
        certs.renew(tmp_path / "one")


def test_the_key_of_a_site_is_on_the_curve_that_flower_asks_for(tmp_path):
    made = certs.site(tmp_path / "keys", "anna")
    assert (made.private.name, made.public.name) == ("anna.key", "anna.pub")
    assert made.private.stat().st_mode & 0o777 == 0o600
    private = serialization.load_ssh_private_key(made.private.read_bytes(), password=None)
    public = serialization.load_ssh_public_key(made.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public
    assert made.public.read_text().endswith(" anna\n")
    assert made.public.read_text() == f"{certs.read_public_key(made.public)} anna\n"


def test_both_forms_of_a_key_give_the_same_text(tmp_path):
    public = certs.site(tmp_path, "anna").public.read_bytes()
    pem = serialization.load_ssh_public_key(public).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert certs.openssh(pem) == certs.openssh(public) == certs.openssh(public.replace(b" anna", b" other comment"))
    assert certs.openssh(pem) != certs.openssh(certs.site(tmp_path, "emil").public.read_bytes())


def test_a_key_is_never_overwritten(tmp_path):
    made = certs.site(tmp_path, "anna")
    before = made.private.read_bytes(), made.public.read_bytes()
    with pytest.raises(UserError, match=r"anna\.key exists"):
        certs.site(tmp_path, "anna")
    made.private.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"anna\.pub exists"):
        certs.site(tmp_path, "anna")
    assert ((tmp_path / "elsewhere").read_bytes(), made.public.read_bytes()) == before


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../anna", "a/b", "a b", "-a", ".a", "a.", "a" * 64, "\u00e4", "a\n", "a\0"]
)
def test_names_of_sites_are_names_of_files(tmp_path, name):
    with pytest.raises(UserError, match="cannot be the name of a site"):
        certs.site(tmp_path / "keys", name)
    assert list(tmp_path.iterdir()) == []


def other_keys() -> dict[str, bytes]:
    forms = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return {
        "P-256": ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(*forms),
        "Ed25519": ed25519.Ed25519PrivateKey.generate().public_key().public_bytes(*forms),
    }


@pytest.mark.parametrize("kind", ["P-256", "Ed25519"])
def test_keys_that_flower_does_not_take_are_refused(kind):
    with pytest.raises(UserError, match=r"x\.pub is not a key for the curve P-384"):
        certs.openssh(other_keys()[kind], "x.pub")


@pytest.mark.parametrize(
    "content", [b"", b"anna", b"ecdsa-sha2-nistp384 AAAA anna", b"-----BEGIN PUBLIC KEY-----\n", b"\xff"]
)
def test_what_is_no_key_is_refused(content):
    with pytest.raises(UserError, match=r"x\.pub is not a public key"):
        certs.openssh(content, "x.pub")


def test_a_private_key_is_not_taken_for_a_public_one(tmp_path):
    with pytest.raises(UserError, match=r"anna\.key is a private key.*make a new pair"):
        certs.read_public_key(certs.site(tmp_path, "anna").private)


def test_the_fingerprint_is_the_one_of_openssh():
    """The key and its fingerprint are from `ssh-keygen -l`."""
    key = (
        "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBK6orpLQ8937JYvww2"
        "MIjuySKzwP78cFrPmQxXpVFMO9pg7lhWsO6aFBuyooA1etBSlbTRvjt4n7bW4QZ/Rx8tSH0vD1cQ9bzS5xJ8/zqVUDwEhEf8jSKeZE1SNJvVnW0w=="
    )
    assert certs.fingerprint(key) == "SHA256:Al99pjujQCIMyu+1g7phlGX/2HW68onRJScnqtQDACs"


@pytest.mark.parametrize("file", ["ca.crt", "server.crt"])
def test_any_changed_bit_of_a_certificate_is_noticed(file, tmp_path):
    """Cryptography reads keys, versions and names only when they are asked for, and a CA proves itself."""
    folder = tmp_path / "tls"
    certs.new(folder, ["server.example.org"])
    der = bytearray(base64.b64decode(b"".join((folder / file).read_bytes().splitlines()[1:-1])))
    for bit in range(0, 8 * len(der), 13):
        changed = bytearray(der)
        changed[bit // 8] ^= 1 << bit % 8
        text = base64.encodebytes(bytes(changed))
        (folder / file).write_bytes(b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n")
        with pytest.raises(UserError, match=rf"{file} (is damaged|was not signed)|(ca|server)\.(key|crt)"):
            certs.describe(folder)
