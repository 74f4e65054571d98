"""Downloads from a server that drops the line, ignores ranges, is busy, or lies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from captioner import DownloadError, OutputError
from captioner_training.prepare.download import fetch

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


def download(server: Any, folder: Path, name: str = "file.zip", **options: Any) -> Path:
    return fetch(f"{server.url}/{name}", folder, backoff=0.001, **options)


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_a_dropped_transfer_is_resumed(server: Any, folder: Path) -> None:
    server.behave("file.zip", drops=[70_000, 100_000, 1, 1, 1, 1, 1])
    path = download(server, folder, checksum=sha256(DATA))
    assert path.read_bytes() == DATA
    ranges = server.gets("file.zip")
    assert ranges[0] == (None, 200)
    assert [code for _, code in ranges[1:]] == [206] * 7
    assert ranges[2][0] == "bytes=170000-"
    assert [p.name for p in folder.iterdir()] == ["file.zip"]
    assert download(server, folder) == path and len(server.gets("file.zip")) == 8
    path.rename(folder / "file.zip.part")  # killed after the last byte
    assert download(server, folder, checksum=sha256(DATA)).read_bytes() == DATA
    assert server.gets("file.zip")[8:] == [("bytes=300000-", 416)]


@pytest.mark.parametrize(("ranges", "checksum"), [(False, True), (True, False)])
def test_a_file_without_ranges_or_a_checksum_is_not_resumed(
    server: Any, folder: Path, ranges: bool, checksum: bool
) -> None:
    server.behave("file.zip", drops=[70_000], ranges=ranges)
    known = sha256(DATA) if checksum else None
    assert download(server, folder, checksum=known).read_bytes() == DATA
    assert [status for _, status in server.gets("file.zip")] == [200, 200]


def test_a_busy_server_is_asked_again(server: Any, folder: Path) -> None:
    busy = [408, 425, 429, 500, 502, 503, 504]
    server.behave("file.zip", statuses=[*busy])
    assert download(server, folder, tries=8).read_bytes() == DATA
    assert [code for _, code in server.gets("file.zip")] == [*busy, 200]


def test_a_file_with_a_wrong_checksum_is_deleted(server: Any, folder: Path) -> None:
    with pytest.raises(DownloadError, match=r"not the published file \(expected sha256:"):
        download(server, folder, checksum=sha256(b"other"))
    assert not list(folder.iterdir())


def test_permanent_errors_are_not_retried(server: Any, folder: Path) -> None:
    with pytest.raises(DownloadError, match=r"nothing\.zip cannot be downloaded: .* answers 404"):
        download(server, folder, "nothing.zip")
    with pytest.raises(DownloadError, match="protocol"):
        fetch("ftp://127.0.0.1/file.zip", folder)
    with pytest.raises(DownloadError, match="files with a checksum are resumed"):
        fetch("http://127.0.0.1:9/file.zip", folder, tries=2, backoff=0.001)
    with pytest.raises(OutputError, match=r"file\.zip\.part cannot be written"):
        (folder / "file.zip.part").mkdir()
        download(server, folder)
