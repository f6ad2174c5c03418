from pathlib import Path

import pytest

from coterie.data.files import locate as module
from coterie.data.files.fetch import File
from coterie.data.files.locate import locate
from coterie.errors import UserError

NAMES = ("images", "labels")
FILES = tuple(map(File, NAMES))
HOME_PAGE = "https://example.org/toys"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache and no COTERIE_DATA."""
    monkeypatch.delenv("COTERIE_DATA", raising=False)
    monkeypatch.setattr(module, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    return tmp_path / "cache" / "coterie" / "toys"


def fill(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(parents=True)
    paths = [folder / name for name in names]
    for path in paths:
        path.touch()
    return paths


def test_the_cache_is_looked_in_without_settings(cache: Path) -> None:
    paths = fill(cache, *NAMES)
    assert locate("toys", FILES, HOME_PAGE, None) == paths


@pytest.mark.parametrize("wrapped", ["images.gz", "images.xz"])
def test_each_file_may_be_compressed(cache: Path, wrapped: str) -> None:
    paths = fill(cache, wrapped, "labels")
    assert locate("toys", FILES, HOME_PAGE, None) == paths


def test_the_variable_goes_before_the_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(cache, *NAMES)
    shared = fill(tmp_path / "shared" / "toys", *NAMES)
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "shared"))
    assert locate("toys", FILES, HOME_PAGE, None) == shared


def test_the_cache_serves_what_the_variable_lacks(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = fill(cache, *NAMES)
    fill(tmp_path / "shared" / "toys", "images")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "shared"))
    assert locate("toys", FILES, HOME_PAGE, None) == cached


def test_an_explicit_path_is_the_only_place(cache: Path, tmp_path: Path) -> None:
    fill(cache, *NAMES)
    explicit = tmp_path / "mine"
    with pytest.raises(UserError) as caught:
        locate("toys", FILES, HOME_PAGE, str(explicit))
    assert str(cache) not in str(caught.value)
    paths = fill(explicit, *NAMES)
    assert locate("toys", FILES, HOME_PAGE, str(explicit)) == paths


def test_what_is_missing_is_told_in_two_lines(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared" / "toys"
    fill(shared, "images.gz")
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "shared"))
    with pytest.raises(UserError) as caught:
        locate("toys", FILES, HOME_PAGE, None)
    first, second = str(caught.value).split("\n")
    assert first == f"toys: missing labels (plain, .gz or .xz); looked in {shared}, {cache}."
    for part in (HOME_PAGE, f"put them in {shared}", "COTERIE_DATA", "--set data.path=DIR"):
        assert part in second


def test_an_empty_variable_is_no_folder(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", "")
    with pytest.raises(UserError, match="missing images, labels") as caught:
        locate("toys", FILES, HOME_PAGE, None)
    assert f"looked in {cache}." in str(caught.value)
