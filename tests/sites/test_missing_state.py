"""What a site keeps on its own disk, and what it does if a part of it is missing."""

import pytest
import torch

from coterie.errors import UserError
from coterie.sites.model import read_accepted, write_accepted
from coterie.sites.state import SiteState


def test_a_missing_journal_does_not_delete_what_was_stored(tmp_path):
    state = SiteState(tmp_path)
    state.start({"w": torch.zeros(2)})
    state.store_update(1, {}, "request", {"w": torch.ones(2)}, b"reply")
    (tmp_path / "state.json").unlink()
    before = sorted(tmp_path.iterdir())
    again = SiteState(tmp_path)
    assert not again.is_started
    with pytest.raises(UserError, match=r"state\.json is missing, and there is a state that was stored later"):
        again.start({"w": torch.zeros(2)})
    assert sorted(tmp_path.iterdir()) == before


def test_a_site_that_was_killed_before_its_first_journal_starts_again(tmp_path):
    SiteState(tmp_path).start({"w": torch.zeros(2)})
    (tmp_path / "state.json").unlink()
    state = SiteState(tmp_path)
    state.start({"w": torch.zeros(2)})
    assert torch.equal(state.kept()["w"], torch.zeros(2))


def test_a_damaged_record_of_a_run_is_named(tmp_path):
    with pytest.raises(UserError, match="this site has not accepted the run"):
        read_accepted(tmp_path)
    write_accepted(tmp_path, {"rounds": 3})
    file = tmp_path / "run.json"
    file.write_bytes(file.read_bytes().replace(b"3", b"4"))
    with pytest.raises(UserError, match=r"run\.json is damaged: its sha256 does not match .*; restore it"):
        read_accepted(tmp_path)
