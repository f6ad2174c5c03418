"""The commands `coterie certs` and `coterie sites`, as people type them on the server and at a site."""

import re
from pathlib import Path

import pytest

from commands import coterie, in_folder
from coterie.sites import certs


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    with in_folder(tmp_path, monkeypatch):
        yield


@pytest.fixture
def typed(monkeypatch, capsys):
    """Runs a command line, and returns its exit code and what it printed."""

    def run(line):
        code = coterie(monkeypatch, *line.split())
        printed = capsys.readouterr()
        return code, " ".join(f"{printed.out}{printed.err}".split())

    return run


def test_a_server_and_a_site_from_nothing(typed):
    code, text = typed("certs new tls --for server.example.org --for 192.0.2.7")
    assert code == 0
    assert "server.example.org, 192.0.2.7; valid until" in text
    assert "Next: give tls/ca.crt to all sites." in text
    code, text = typed("certs site anna --out keys")
    assert code == 0
    fingerprint = certs.fingerprint(certs.read_public_key(Path("keys/anna.pub")))
    assert f"fingerprint: {fingerprint}" in text
    assert "1. Give keys/anna.pub to the operator of the server. keys/anna.key stays here." in text
    (command,) = re.findall(r"runs: coterie (sites add .*)$", text)
    assert command == "sites add anna anna.pub"
    code, text = typed(f"{command.replace('anna.pub', 'keys/anna.pub')} --in server")
    assert code == 0
    assert text.startswith(f"added anna to server/sites.json fingerprint: {fingerprint}")
    code, text = typed("sites list --in server")
    assert code == 0
    assert re.search(rf"│ anna │ {re.escape(fingerprint)} │ \S+ │ │", text)
    assert typed("sites remove anna --in server") == (
        0,
        "removed anna from server/sites.json. Its key cannot be added again.",
    )
    assert re.search(rf"│ anna │ {re.escape(fingerprint)} │ \S+ │ \S+ │", typed("sites list --in server")[1])
    code, text = typed("sites add emil keys/anna.pub --in server")
    assert code == 2
    assert "cannot be added again" in text


def test_certificates_are_shown_and_renewed(typed):
    typed("certs new tls --for a.example --days 10")
    before = certs.describe(Path("tls"))
    code, text = typed("certs renew tls --for b.example --days 20")
    after = certs.describe(Path("tls"))
    assert code == 0
    assert "Next: restart `coterie server`" in text
    assert (after.names, (after.expires - before.expires).days) == (("b.example",), 10)
    code, text = typed("certs show tls")
    assert code == 0
    assert f"b.example; valid until {after.expires.date()}" in text
    assert f"sha256 {before.ca_fingerprint}" in text


def test_an_expired_certificate_is_shown_and_is_an_error(typed, monkeypatch):
    typed("certs new tls --for a.example --days 10")
    expires = certs.describe(Path("tls")).expires
    monkeypatch.setattr(certs, "now", lambda: expires.replace(year=expires.year + 1))
    code, text = typed("certs show tls")
    assert code == 2
    assert f"a.example; valid until {expires.date()}" in text
    assert f"error: tls/server.crt has expired on {expires.date()}; `coterie certs renew tls`" in text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("certs new tls", "error: a certificate needs the names or addresses"),
        ("certs new . --for a.example", "exists and is not an empty folder"),
        ("certs new tls --for https://a.example", "neither a DNS name nor an IP address"),
        ("certs new tls --for a.example --days 0", "Invalid value for '--days'"),
        ("certs new", "Missing argument 'DIR'"),
        ("certs show tls", "tls/ca.crt does not exist"),
        ("certs renew tls", "tls/ca.crt does not exist"),
        ("certs site ../anna", "cannot be the name of a site"),
        ("certs site here", "here.pub exists"),
        ("sites add anna anna.pub", "anna.pub does not exist"),
        ("sites add anna here.pub", "here.pub is not a public key"),
        ("sites list", "there is no list of sites at sites.json"),
        ("sites list --in ~nobody-here", "home folder of a user who does not exist"),
        ("sites remove anna", "there is no site 'anna'"),
    ],
)
def test_mistakes_end_with_a_message_and_write_nothing(typed, line, complaint):
    Path("here.pub").write_text("nonsense")
    code, text = typed(line)
    assert code == 2
    assert complaint in text
    assert {path.name for path in Path().iterdir()} <= {"here.pub", ".sites.json.lock"}
