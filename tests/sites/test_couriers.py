"""The courier of a site as a child process."""

from pathlib import Path

import pytest

from coterie.sites.couriers import Courier


@pytest.mark.parametrize("file", ["courier", "courier/courier.log/x"])
def test_a_folder_that_cannot_be_used_ends_the_site_with_a_message(file: str, tmp_path: Path) -> None:
    """Otherwise the site would wait for ever for requests that nobody brings."""
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    ended: list[bool] = []
    state = tmp_path / "courier"
    with Courier("127.0.0.1:9", tmp_path / "key", tmp_path / "s", state, None, lambda: ended.append(True)) as courier:
        courier.wait()
    assert ended == [True]
    assert f"cannot use its folder {state}" in courier.verdict
