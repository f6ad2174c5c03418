"""What a site keeps on its disk: damage is told, nothing is lost when the disk is full, and nothing is overwritten."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import reference as ref
from coterie.clients.wire import decode
from coterie.errors import DiskError, UserError
from coterie.sites.state import Pending, SiteState
from coterie.storage.folder import SERVER
from sites.direct import Direct, deployed, simulated
from sites.disks import fill, small  # noqa: F401 - a fixture
from sites.test_equality import assert_equal, recipe, states
from sites.test_faults import without

FIRST, SECOND, THIRD = ({"w": torch.full((3,), value), "h.w": torch.tensor(value)} for value in (1.0, 2.0, 3.0))


def after(folder: Path) -> SiteState:
    """Return the state as a process finds it that starts now."""
    return SiteState(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a site that has kept a first state, and has sent a reply for round 4 that may not count yet."""
    state = SiteState(tmp_path / "state")
    state.start(FIRST)
    state.store_update(4, {"index": 4}, "request", SECOND, b"the reply")
    return tmp_path / "state"


def test_both_states_and_the_reply_are_on_the_disk(folder):
    state = after(folder)
    assert state.journal.pending == Pending(4, "request", *_digests(folder), {"index": 4})
    assert_equal(state.kept(), FIRST, "kept")
    assert_equal(state.update(state.journal.pending), SECOND, "pending")
    assert state.reply(state.journal.pending) == b"the reply"
    assert state.journal.round == 0
    assert state.journal.replies == 1


def _digests(folder: Path) -> tuple[str, str]:
    pending = json.loads((folder / "state.json").read_text())["pending"]
    return pending["state"], pending["reply"]


def test_a_round_that_counts_replaces_the_state_before(folder):
    after(folder).keep(THIRD)
    state = after(folder)
    assert (state.journal.round, state.journal.pending) == (4, None)
    assert_equal(state.kept(), THIRD, "kept")
    assert len(list(folder.iterdir())) == 2  # the journal and one state


def test_another_update_replaces_the_one_that_does_not_count(folder):
    after(folder).store_update(5, {"index": 5}, "another", THIRD, b"another reply")
    state = after(folder)
    assert (state.journal.pending.round, state.journal.replies) == (5, 2)
    assert_equal(state.kept(), FIRST, "kept")
    assert_equal(state.update(state.journal.pending), THIRD, "pending")


def use(folder: Path) -> None:
    state = after(folder)
    state.kept()
    state.update(state.journal.pending)
    state.reply(state.journal.pending)


def damages() -> dict[str, Callable[[Path], None]]:
    def flipped(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)

    return {
        "flipped": flipped,
        "cut": lambda file: file.write_bytes(file.read_bytes()[:-3]),
        "empty": lambda file: file.write_bytes(b""),
        "longer": lambda file: file.write_bytes(file.read_bytes() + b"x"),
        "deleted": Path.unlink,
    }


@pytest.mark.parametrize("damage", damages())
@pytest.mark.parametrize("kind", ["state.json", "kept", "pending", "reply"])
def test_damage_is_told_and_nothing_is_overwritten(folder, damage, kind):
    if (kind, damage) == ("state.json", "deleted"):
        return  # such a site takes part for the first time; the server notices (test_demands.py)
    pending, reply = _digests(folder)
    kept = json.loads((folder / "state.json").read_text())["state"]
    files = {"kept": f"{kept}.safetensors", "pending": f"{pending}.safetensors", "reply": f"{reply}.reply"}
    file = folder / files.get(kind, kind)
    damages()[damage](file)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(UserError, match=r"is (missing or )?damaged.*[Rr]estore the folder"):
        use(folder)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def test_a_run_with_a_damaged_site_goes_on_without_it(tmp_path):
    """The site says what is damaged, and the others train."""
    federation = ref.federation((5, 3, 8))
    told = []

    def damaging(name, request, answer):
        asked = decode(request)
        if name == "client-1" and asked.kind == "update" and asked.head["round"]["index"] == 3:
            (journal,) = (tmp_path / "client-1" / "runs").glob("*/state/state.json")
            journal.write_bytes(journal.read_bytes()[:-20])
        reply = answer(request)
        if name == "client-1" and decode(reply).kind == "failed":
            told.append(decode(reply).head["why"])
        return reply

    transport = Direct(federation, tmp_path, damaging)
    run = deployed(recipe("pflego", clients_per_round=3), transport, quorum=0.5, attempts=1)
    assert [list(record.refused) for record in run.history] == [[], [], ["client-1"], ["client-1"]]
    assert all("state.json is damaged" in why and "Restore the folder from a backup" in why for why in told)


@pytest.mark.parametrize("method", ["pflego", "fedpac"])
def test_a_site_with_a_full_disk_counts_as_absent_until_there_is_space(method, small, tmp_path):  # noqa: F811
    federation = ref.federation((5, 3, 8))
    settings, ballast = recipe(method, clients_per_round=3), []

    def filling(name, request, answer):
        asked = decode(request)
        index = asked.head["round"]["index"] if asked.kind == "update" else 0
        if name == "client-1" and index == 2 and not ballast:
            ballast.append(fill(small))
        if name == "client-1" and index == 3 and ballast[0].exists():
            ballast[0].unlink()
        return answer(request)

    transport = Direct(federation, tmp_path, filling)
    (tmp_path / "client-1").symlink_to(small)
    found = deployed(settings, transport, quorum=0.5, attempts=1)
    expected = without(settings, federation, 1, 2)
    why = found.history[1].refused["client-1"]
    assert "No space left on device" in why
    assert_equal(found.shared, expected.shared, "shared")
    for name in federation.ids:
        assert_equal(states(transport)[name], expected.personal(name), name)


def test_a_server_with_a_full_disk_stops_and_can_be_resumed(small, tmp_path):  # noqa: F811
    federation, out = ref.federation((5, 3, 8)), small / "run"
    (out / SERVER).mkdir(parents=True)
    settings, ballast = recipe("pflego", clients_per_round=3), []

    def filling(name, request, answer):
        asked = decode(request)
        if not ballast and asked.kind == "update" and asked.head["round"]["index"] == 3:
            ballast.append(fill(small))
        return answer(request)

    transport = Direct(federation, tmp_path / "sites", filling)
    with pytest.raises(DiskError, match=r"No space left on device.*continue with `coterie server --resume .*run`"):
        deployed(settings, transport, out)
    ballast[0].unlink()
    found, expected = deployed(settings, transport, out, resume=True), simulated(settings, federation)
    assert_equal(found.shared, expected.shared, "shared")
    for name in federation.ids:
        assert_equal(states(transport)[name], expected.personal(name), name)
