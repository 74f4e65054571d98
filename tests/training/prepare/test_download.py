"""Downloads from a server that drops the line, ignores ranges, is busy, or lies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captioner import DownloadError, OutputError
from captioner_training.prepare.download import Downloader, RemoteFile

DATA = os.urandom(300_000)
Serve = Callable[[Path], Any]


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> Any:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "file.zip").write_bytes(DATA)
    return serve(tmp_path / "www")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "down").mkdir()
    return tmp_path / "down"


def remote(server: Any, *, checksum: str | None = None, size: int | None = None) -> RemoteFile:
    return RemoteFile(url=f"{server.url}/file.zip", checksum=checksum, size=size)


def fetch(folder: Path, file: RemoteFile, tries: int = 4) -> Path:
    with Downloader(folder, tries=tries, backoff=0.001) as downloader:
        return downloader.fetch(file)


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_a_dropped_line_is_taken_up_where_it_broke(server: Any, folder: Path) -> None:
    server.behave("file.zip", drops=[70_000, 100_000, 1, 1, 1, 1, 1])
    path = fetch(folder, remote(server, checksum=sha256(DATA)))
    assert path.read_bytes() == DATA
    ranges = server.gets("file.zip")
    assert ranges[0] == (None, 200)
    assert [code for _, code in ranges[1:]] == [206] * 7
    assert ranges[2][0] == "bytes=170000-"
    assert [p.name for p in folder.iterdir()] == ["file.zip"]
    assert fetch(folder, remote(server)) == path and len(server.gets("file.zip")) == 8


def test_a_server_without_ranges_sends_all_of_it_again(server: Any, folder: Path) -> None:
    server.behave("file.zip", drops=[70_000, 200_000], ranges=False)
    assert fetch(folder, remote(server)).read_bytes() == DATA
    assert [code for _, code in server.gets("file.zip")] == [200, 200, 200]


def test_only_a_checksum_allows_to_resume(server: Any, folder: Path) -> None:
    server.behave("file.zip", drops=[70_000])
    assert fetch(folder, remote(server)).read_bytes() == DATA
    assert server.gets("file.zip") == [(None, 200), (None, 200)]


def test_a_busy_server_is_asked_again(server: Any, folder: Path) -> None:
    server.behave("file.zip", statuses=[503, 429, 500])
    assert fetch(folder, remote(server)).read_bytes() == DATA
    assert [code for _, code in server.gets("file.zip")] == [503, 429, 500, 200]


def test_what_has_a_wrong_checksum_is_not_kept(server: Any, folder: Path) -> None:
    with pytest.raises(DownloadError, match=r"not the file that was published: its sha256 is"):
        fetch(folder, remote(server, checksum=sha256(b"other")))
    assert not (folder / "file.zip").exists() and not (folder / "file.zip.part").exists()
    with pytest.raises(DownloadError, match="it has 300,000 bytes, not 7"):
        fetch(folder, remote(server, size=7))


def test_what_cannot_be_had_is_said_at_once(server: Any, folder: Path) -> None:
    with pytest.raises(DownloadError, match=r"nothing\.zip cannot be downloaded: .* answers 404"):
        fetch(folder, RemoteFile(url=f"{server.url}/nothing.zip"))
    with pytest.raises(DownloadError, match="protocol"):
        fetch(folder, RemoteFile(url="ftp://127.0.0.1/file.zip"))
    with pytest.raises(DownloadError, match="goes on where it stopped"):
        fetch(folder, RemoteFile(url="http://127.0.0.1:9/file.zip"), tries=2)
    with pytest.raises(OutputError, match=r"file\.zip\.part cannot be written"):
        fetch(folder / "nowhere", remote(server))
