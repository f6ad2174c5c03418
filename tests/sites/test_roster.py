"""The list of sites: who may connect, and who never again."""

import json
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization

from coterie.errors import UserError
from coterie.sites import certs, files
from coterie.sites.roster import Roster


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Public keys by name, as in files that sites send."""
    folder = tmp_path_factory.mktemp("keys")
    return {name: certs.site(folder, name).public.read_bytes() for name in ("anna", "emil", "nora", "omar")}


@pytest.fixture
def roster(tmp_path):
    return Roster(tmp_path / "server" / "sites.json")


def test_a_site_is_found_by_its_key(roster, keys):
    for name in ("anna", "emil"):
        roster.add(name, keys[name])
    assert roster.names() == ["anna", "emil"]
    assert [roster.name_of(keys[name]) for name in ("anna", "emil", "nora")] == ["anna", "emil", None]
    pem = serialization.load_ssh_public_key(keys["emil"]).public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert roster.name_of(pem) == "emil"
    assert roster.keys() == {certs.openssh(keys[name]): name for name in ("anna", "emil")}
    assert roster.path.stat().st_mode & 0o777 == 0o600
    assert Roster(roster.path).entries() == roster.entries()


def test_a_missing_list_is_empty(roster, keys):
    assert roster.entries() == roster.names() == []
    assert roster.name_of(keys["anna"]) is None
    assert not roster.path.parent.exists()


def test_a_removed_site_does_not_connect(roster, keys):
    roster.add("anna", keys["anna"])
    roster.add("emil", keys["emil"])
    roster.remove("anna")
    assert roster.names() == ["emil"]
    assert roster.name_of(keys["anna"]) is None
    assert roster.keys() == {certs.openssh(keys["emil"]): "emil"}
    assert [(site.name, site.removed is None) for site in roster.entries()] == [("anna", False), ("emil", True)]


@pytest.mark.parametrize("name", ["anna", "emil"])
def test_a_removed_key_never_returns_under_any_name(roster, keys, name):
    roster.add("anna", keys["anna"])
    roster.remove("anna")
    before = roster.path.read_bytes()
    with pytest.raises(UserError, match=rf"was removed as 'anna' on .* cannot be added again.*certs site {name}"):
        roster.add(name, keys["anna"])
    assert roster.path.read_bytes() == before


def test_a_name_can_get_a_new_key_after_its_old_one_was_removed(roster, keys):
    roster.add("anna", keys["anna"])
    with pytest.raises(UserError, match=r"there is a site 'anna' already.*remove that site first"):
        roster.add("anna", keys["nora"])
    roster.remove("anna")
    roster.add("anna", keys["nora"])
    assert [roster.name_of(keys[name]) for name in ("anna", "nora")] == [None, "anna"]
    roster.remove("anna")  # the one that is present
    assert roster.names() == []
    with pytest.raises(UserError, match="cannot be added again"):
        roster.add("anna", keys["nora"])


def test_one_key_has_one_name(roster, keys):
    roster.add("anna", keys["anna"])
    with pytest.raises(UserError, match=r"a\.pub is on the list already, as 'anna'"):
        roster.add("emil", keys["anna"], "a.pub")


def test_names_that_differ_in_case_only_are_refused(roster, keys):
    roster.add("anna", keys["anna"])
    with pytest.raises(UserError, match="there is a site 'anna' already"):
        roster.add("Anna", keys["emil"])


def test_bad_names_and_keys_leave_the_list_as_it_is(roster, keys):
    with pytest.raises(UserError, match="cannot be the name of a site"):
        roster.add("../anna", keys["anna"])
    with pytest.raises(UserError, match=r"x\.pub is not a public key"):
        roster.add("anna", b"nonsense", "x.pub")
    assert not roster.path.exists()


def test_an_unknown_name_is_not_removed(roster, keys):
    with pytest.raises(UserError, match=r"there is no site 'anna'; sites in .*: none"):
        roster.remove("anna")
    roster.add("anna", keys["anna"])
    with pytest.raises(UserError, match=r"there is no site 'ana' \(did you mean 'anna'\?\)"):
        roster.remove("ana")
    roster.remove("anna")
    with pytest.raises(UserError, match="'anna' was removed before"):
        roster.remove("anna")


@pytest.mark.parametrize("place", [3, -10, 200])
def test_a_changed_list_is_refused_and_not_overwritten(roster, keys, place):
    roster.add("anna", keys["anna"])
    content = bytearray(roster.path.read_bytes())
    content[place] ^= 1
    roster.path.write_bytes(content)
    for use in (roster.names, lambda: roster.name_of(keys["anna"]), lambda: roster.add("emil", keys["emil"])):
        with pytest.raises(UserError, match=r"sites\.json is damaged"):
            use()
    assert roster.path.read_bytes() == content


def test_a_list_that_cannot_be_read_is_named(tmp_path, keys):
    (tmp_path / "sites.json").mkdir()
    with pytest.raises(UserError, match=r"cannot read the list of sites .*sites\.json"):
        Roster(tmp_path / "sites.json").name_of(keys["anna"])
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write to the folder"):
        Roster(tmp_path / "file" / "sites.json").add("anna", keys["anna"])


ADDER = """
import json, sys
from pathlib import Path
from coterie.sites.roster import Roster
for name, key in json.load(sys.stdin).items():
    Roster(Path(sys.argv[1])).add(name, key.encode())
"""


def test_two_commands_at_once_lose_nothing(roster, tmp_path):
    """Each of three processes adds eight sites, one by one."""
    halves = [
        {name: certs.site(tmp_path / "keys", name).public.read_text() for name in (f"{part}{i}" for i in range(8))}
        for part in "abc"
    ]
    running = [
        subprocess.Popen([sys.executable, "-c", ADDER, roster.path], stdin=subprocess.PIPE, text=True) for _ in halves
    ]
    for process, half in zip(running, halves, strict=True):
        process.stdin.write(json.dumps(half))
        process.stdin.close()
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert sorted(roster.names()) == sorted(name for half in halves for name in half)


def test_a_command_that_does_not_end_is_not_waited_for_forever(roster, keys, monkeypatch):
    monkeypatch.setattr(files, "_PATIENCE", 0.05)
    with files.changing(roster.path), pytest.raises(UserError, match=r"another command is changing .*sites\.json"):
        roster.add("anna", keys["anna"])
    roster.add("anna", keys["anna"])
    assert roster.names() == ["anna"]
