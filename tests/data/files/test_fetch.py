"""Downloads from a local server that can be made to fail."""

import hashlib
import http.server
import io
import logging
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coterie.data.files import fetch as module
from coterie.data.files import locate as locating
from coterie.data.files.fetch import FetchError, File, fetch
from coterie.data.files.locate import locate
from coterie.errors import UserError

CONTENT = bytes(range(256)) * 1200
MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"


@dataclass
class Server:
    address: str = ""
    content: bytes = CONTENT
    cut_after: list[int] = field(default_factory=list)
    """For each coming answer: close the connection after so many bytes of it."""
    ranges: bool = True
    length: str = ""
    """What the server says instead of the right length."""
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            if self.path.startswith("/nowhere"):
                return self.send_error(404)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and state.ranges else 0
            if start >= len(state.content):
                return self.send_error(416)
            body = state.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", state.length or str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.cut_after.pop(0)] if state.cut_after else body)
            return None

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        state.address = f"http://127.0.0.1:{listening.server_port}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        listening.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Allow downloads to an empty cache, without the proxies of this machine."""
    for name in ("COTERIE_OFFLINE", "COTERIE_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(locating, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def test_a_download_is_checked_and_takes_its_place(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "coterie"):
        fetch([File("toy", (f"{server.address}/a/toy.gz",), MD5)], tmp_path / "new")
    assert (tmp_path / "new" / "toy.gz").read_bytes() == CONTENT
    assert names(tmp_path / "new") == {"toy.gz"}
    assert f"downloaded {tmp_path / 'new' / 'toy.gz'}" in caplog.text


@pytest.mark.parametrize("length", ["9" * 5000, "-3", "many", "\u00b2"])
def test_nonsense_as_the_length_of_a_file(server: Server, tmp_path: Path, length: str) -> None:
    """The connection may end early then, which is an error of the download and not a traceback."""
    server.length = length
    try:
        fetch([File("toy", (f"{server.address}/a/toy.gz",), MD5)], tmp_path / "new")
    except FetchError:
        assert names(tmp_path / "new") <= {"toy.gz.partial"}
    else:
        assert (tmp_path / "new" / "toy.gz").read_bytes() == CONTENT


def test_locate_downloads_into_the_cache_once(server: Server, tmp_path: Path) -> None:
    files = [File("toy", (f"{server.address}/toy",), MD5)]
    target = tmp_path / "cache" / "coterie" / "toys" / "toy"
    assert locate("toys", files, "https://example.org", None) == [target]
    assert locate("toys", files, "https://example.org", None) == [target]
    assert len(server.asked) == 1


def test_a_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cut_after = [100_000, 50_000]
    fetch([File("toy", (f"{server.address}/toy",), MD5)], tmp_path)
    assert (tmp_path / "toy").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_the_next_process_goes_on_where_this_one_stopped(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1000] * module._ATTEMPTS
    files = [File("toy", (f"{server.address}/toy",), MD5)]
    with pytest.raises(FetchError, match="toy: "):
        fetch(files, tmp_path)
    assert names(tmp_path) == {"toy.partial"}
    fetch(files, tmp_path)
    assert names(tmp_path) == {"toy"}
    assert server.asked[-1][1] == f"bytes={1000 * module._ATTEMPTS}-"


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.ranges = [1000], False
    fetch([File("toy", (f"{server.address}/toy",), MD5)], tmp_path)
    assert (tmp_path / "toy").read_bytes() == CONTENT


@pytest.mark.parametrize("left", [CONTENT, b"something else" * 100_000], ids=["whole", "too long"])
def test_a_partial_file_that_lacks_nothing(server: Server, tmp_path: Path, left: bytes) -> None:
    (tmp_path / "toy.partial").write_bytes(left)
    fetch([File("toy", (f"{server.address}/toy",), MD5)], tmp_path)
    assert (tmp_path / "toy").read_bytes() == CONTENT


def test_without_a_checksum_parts_are_not_put_together(server: Server, tmp_path: Path) -> None:
    (tmp_path / "toy.partial").write_bytes(b"of another time")
    fetch([File("toy", (f"{server.address}/toy",))], tmp_path)
    assert (tmp_path / "toy").read_bytes() == CONTENT
    assert server.asked == [("/toy", None)]


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.content = b"an error page"
    cache = tmp_path / "cache" / "coterie" / "toys"
    with pytest.raises(UserError, match=f"{server.address}/toy: wrong checksum") as caught:
        locate("toys", [File("toy", (f"{server.address}/toy",), MD5)], "https://example.org", None)
    assert f"Download them from https://example.org and put them in {cache}" in str(caught.value)
    assert names(cache) == set()


def test_the_second_mirror_helps(server: Server, tmp_path: Path) -> None:
    urls = ("http://127.0.0.1:9/toy", f"{server.address}/nowhere/toy", f"{server.address}/toy")
    fetch([File("toy", urls, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")], tmp_path)
    assert (tmp_path / "toy").read_bytes() == CONTENT


def test_without_network_the_message_says_what_goes_where(tmp_path: Path) -> None:
    files = [File(name, (f"http://127.0.0.1:9/{name}",), MD5) for name in ("images", "labels")]
    with pytest.raises(UserError) as caught:
        locate("toys", files, "https://example.org", None)
    first, last = str(caught.value).split("\n")
    assert first.startswith("toys: missing images, labels")
    assert "the download failed: http://127.0.0.1:9/images: " in first
    assert "refused" in first
    assert f"put them in {tmp_path / 'cache' / 'coterie' / 'toys'}" in last


def test_offline_means_offline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_OFFLINE", "1")
    with pytest.raises(UserError, match="COTERIE_OFFLINE is set"):
        locate("toys", [File("toy", (f"{server.address}/toy",), MD5)], "https://example.org", None)
    assert server.asked == []


def test_an_explicit_path_is_never_downloaded_to(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing toy"):
        locate("toys", [File("toy", (f"{server.address}/toy",), MD5)], "https://example.org", str(tmp_path))
    assert server.asked == []


def a_tar(contents: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def two(server: Server) -> Callable[[], list[File]]:
    def files() -> list[File]:
        checksum = f"md5:{hashlib.md5(server.content).hexdigest()}"
        return [File(name, (f"{server.address}/all.tar.gz",), checksum, f"in/{name}.bin") for name in ("a", "b")]

    return files


def test_members_of_an_archive_come_with_one_download(server: Server, tmp_path: Path, two) -> None:
    server.content = a_tar({"in/a.bin": b"A", "in/other": b"-", "in/b.bin": b"B"})
    fetch(two(), tmp_path)
    assert names(tmp_path) == {"a.bin", "b.bin"}
    assert ((tmp_path / "a.bin").read_bytes(), (tmp_path / "b.bin").read_bytes()) == (b"A", b"B")
    assert len(server.asked) == 1


def test_an_archive_without_its_member_is_told(server: Server, tmp_path: Path, two) -> None:
    server.content = a_tar({"in/a.bin": b"A"})
    with pytest.raises(UserError, match=r"does not contain in/b\.bin"):
        fetch(two(), tmp_path)
