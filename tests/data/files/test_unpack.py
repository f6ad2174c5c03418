import gzip
import io
import lzma
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from coterie.data.files import unpack
from coterie.data.files.unpack import content, members
from coterie.errors import UserError


def a_zip(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return path


def a_tar(path: Path, *entries: tuple[str | tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in entries:
            entry = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def inside(path: Path) -> dict[str, bytes]:
    return dict(members(path, str))


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz", "w:xz", "w:bz2"])
def test_members_of_every_kind_of_archive(tmp_path: Path, mode: str) -> None:
    entries = (("a/one.txt", b"1"), ("a/two.txt", b"2" * 100_000))
    path = tmp_path / "archive"
    path = a_zip(path, ("a/", b""), *entries) if mode == "zip" else a_tar(path, *entries, mode=mode)
    assert inside(path) == dict(entries)
    assert [name for name, _ in members(path, wanted=lambda name: "two" in name)] == ["a/two.txt"]


NAMES = ["../evil", "a/../../evil", "/etc/evil", "..\\evil", "C:\\evil", "C:evil", "\\\\host\\evil"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [a_zip, a_tar])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str, make) -> None:
    path = make(tmp_path / "archive", ("good", b"1"), (name, b"2"))
    with pytest.raises(UserError, match=r"is refused: .* points outside its folder"):
        inside(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    entry = tarfile.TarInfo("innocent")
    entry.type, entry.linkname = kind, "/etc/passwd"
    with pytest.raises(UserError, match="'innocent' is a link, a device or"):
        inside(a_tar(tmp_path / "archive", (entry, b"")))


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    entry = zipfile.ZipInfo("innocent")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(UserError, match="'innocent' is a link"):
        inside(a_zip(tmp_path / "archive", (entry, b"/etc/passwd")))


@pytest.mark.parametrize("make", [a_zip, a_tar])
def test_too_much_is_refused(tmp_path: Path, make, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "archive", ("one", b"1" * 10_000), ("two", b"2" * 10_000))
    monkeypatch.setenv("COTERIE_MAX_GB", "0.00004")
    assert len(inside(path)) == 2
    monkeypatch.setenv("COTERIE_MAX_GB", "0.000039")
    with pytest.raises(
        UserError, match=r"is refused: its content would take 40,000 bytes of memory.*COTERIE_MAX_GB=1$"
    ):
        inside(path)
    monkeypatch.delenv("COTERIE_MAX_GB")
    monkeypatch.setattr(unpack, "_MOST_FILES", 1)
    with pytest.raises(UserError, match="is refused: it contains more than 1 files"):
        inside(path)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress], ids=["plain", "gzip", "xz"])
def test_a_single_file_has_a_limit_too(tmp_path: Path, pack, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(pack(b"\0" * 1000))
    monkeypatch.setenv("COTERIE_MAX_GB", "0.000003")
    assert len(content(path, cost=3)) == 1000
    with pytest.raises(
        UserError, match="is refused: more than 1,000 bytes of content would take 4,000 bytes of memory"
    ):
        content(path, cost=4)


@pytest.mark.parametrize("text", ["0", "-1", "many", "nan", "inf"])
def test_the_limit_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "file").write_bytes(b"1")
    monkeypatch.setenv("COTERIE_MAX_GB", text)
    with pytest.raises(UserError, match=f"COTERIE_MAX_GB = '{text}' must be a number of gigabytes above 0"):
        content(tmp_path / "file")


def test_a_long_header_of_a_tar_is_refused(tmp_path: Path) -> None:
    name = tarfile.TarInfo("a" * 2_000_000)
    with pytest.raises(UserError, match="a header of 2,000,"):
        inside(a_tar(tmp_path / "archive", (name, b"1"), mode="w:gz"))


def test_a_path_that_cannot_exist_is_refused() -> None:
    with pytest.raises(UserError, match="is not the path of a file: embedded null byte"):
        content(Path("a\0b"))


def test_what_is_no_archive_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(b"<html>404</html>" * 100)
    with pytest.raises(UserError, match="cannot be unpacked"):
        inside(path)
    whole = a_tar(tmp_path / "cut", ("one", b"1" * 100_000), mode="w:gz").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is damaged"):
        inside(tmp_path / "cut")
