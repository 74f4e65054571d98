"""Photos, archives and buckets at URLs, and addresses that no URL may lead to."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from captioner import Captioner, ImageNotFoundError, ImageTooLargeError
from captioner.errors import MissingExtraError
from captioner_serving import networks
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.engine import LocalEngine
from captioner_serving.batch.inputs import urls
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, PhotoFile
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.inputs.urls import RemotePhoto
from tests.launcher import Run
from tests.process_tree import children
from tests.serving.batch.conftest import Photos, draw
from tests.serving.batch.test_sources import names
from tests.web import Handler, hosting


@pytest.fixture
def twins() -> None:
    """Links are read in decoding processes, with threads that a fork would lack."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with hosting(tmp_path) as address:
        yield address


def test_photos_at_urls_are_captioned(
    tiny: Captioner, photos: Photos, server: str, tmp_path: Path
) -> None:
    folder = photos(3)
    wanted = [record["caption"] for record in caption_batch(folder, captioner=tiny)]
    (tmp_path / "list").write_text(f"{server}/photos/p001.jpg?w=20\n{server}/photos/none.jpg\n")
    inputs = Inputs(
        sources=(f"{server}/photos/p000.jpg",),
        lists=(str(tmp_path / "list"),),
        allow_private=True,  # it is at 127.0.0.1
    )
    first, second, third = caption_batch(inputs, captioner=tiny)
    assert [first["caption"], second["caption"]] == wanted[:2]
    assert third["error"]["type"] == "image-not-found"
    missing = f"{server}/photos/none.jpg cannot be read (404 File not found): check the URL"
    assert third["error"]["detail"] == missing
    for url in (f"{server}/a.zip", f"{server}/A.TAR?signature=1", f"zip://*::{server}/a.zip"):
        assert isinstance(first_of(sources=(url,)), LostPhoto)
    config = BatchConfig(sidecar="txt")
    unwritten = caption_batch(replace(inputs, sources=()), config=config, captioner=tiny)
    assert next(unwritten)["error"]["detail"] == (
        f"{server}/photos/p001.jpg?w=20 is not a file on disk; it cannot have a sidecar"
    )
    unwritten.close()


@dataclass(frozen=True, kw_only=True)
class Secret(RemotePhoto):
    """A photo whose error shows the environment of the process that reads it."""

    def read(self) -> bytes:
        raise ImageNotFoundError(json.dumps(dict(os.environ)))


def test_credentials_reach_only_the_processes_that_read_urls(
    tiny: Captioner, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "https_proxy", "PASSWORD")
    for name in names:
        monkeypatch.setenv(name, "a secret of the user")
    local: list[Photo] = [PhotoFile(name="p.jpg", path=str(photos(1) / "p000.jpg"))]
    before = set(children(os.getpid()))
    with LocalEngine(tiny, tiny.generation, BatchConfig(workers=1)) as engine:
        ((outcome,),) = engine.run(iter(local))
        assert outcome.record["caption"]
        (process,) = set(children(os.getpid())) - before
        found = Path(f"/proc/{process}/environ").read_bytes()
        assert b"PATH=" in found and b"a secret of the user" not in found
        ((outcome,),) = engine.run(iter([Secret(name="a.jpg", url="s3://bucket/a.jpg")]))
    passed = json.loads(outcome.record["error"]["detail"])
    assert [passed.get(name) for name in names] == ["a secret of the user"] * 3 + [None]


def test_options_of_inputs_reach_the_run(
    run_batch: Run, photos: Photos, server: str, tmp_path: Path
) -> None:
    folder, root = photos(1), photos(2, name="root", first=1)
    draw(9, (61, 40)).save(folder / "wide.jpg")
    table, listed = tmp_path / "t.csv", tmp_path / "list"
    table.write_text("id,file\n1,p001.jpg\n")
    urls = [f"{server}/root/p001.jpg", f"{server}/root/p002.jpg"]
    listed.write_text("\n".join(urls))
    options = (
        *("--column", "file", "--list", listed, "--root", root),
        *("--allow-private", "--max-pixels", 60 * 40),
    )
    result = run_batch(folder, table, *options, "--output", "-")
    records = list(map(json.loads, result.stdout.splitlines()))
    names = [f"{folder}/p000.jpg", f"{folder}/wide.jpg", "p001.jpg", *urls]
    assert [record["image"] for record in records] == names
    errors = [record.get("error", {}).get("type") for record in records]
    assert errors == [None, "image-too-large", None, None, None]


def test_file_systems_of_fsspec(tiny: Captioner, photos: Photos) -> None:
    """file:// goes the way of s3:// and gs://: listed, sorted, read by the workers."""
    folder = photos(3)
    (folder / "deep").mkdir()
    (folder / "p000.jpg").rename(folder / "deep" / "p000.jpg")
    (folder / "notes.txt").write_text("no photo")
    shutil.copy(folder / "p001.jpg", folder / "deep" / ".p001.jpg")
    expected = [f"file://{folder}/{name}" for name in ("deep/p000.jpg", "p001.jpg", "p002.jpg")]
    records = list(caption_batch(f"file://{folder}", captioner=tiny))
    assert [record["image"] for record in records] == expected
    assert all("caption" in record for record in records)
    assert names(f"file://{folder}/*.jpg") == expected[1:]
    assert names(f"file://{folder}/**/p000.jpg") == expected[:1]
    for nothing in (f"file://{folder}/nothere", f"file://{folder}/*.png"):
        (failed,) = Inputs(sources=(nothing,)).photos()
        assert isinstance(failed, LostPhoto) and nothing in failed.reason
    shutil.copy(folder / "p001.jpg", folder / "e[1].jpg")
    assert names(f"file://{folder}/e[1].jpg") == [f"file://{folder}/e[1].jpg"]
    (folder / "a.tar").touch()
    assert isinstance(first_of(sources=(f"file://{folder}/*.tar",)), LostPhoto)


def test_links_in_lists_are_of_allowed_schemes(tmp_path: Path) -> None:
    links = (
        "file:///etc/passwd",
        "simplecache::https://a.org/a.jpg",
        "https://a.org/a.jpg",
        "http://[::1]/a",
        *(allowed := ("http://a.org/a.jpg", "HTTPS://a.org/b.jpg", "s3://b/a.jpg", "gs://b/a.jpg")),
    )
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(links))
    found = list(Inputs(lists=(str(listed),)).photos())
    kinds = [LostPhoto, PhotoFile, RemotePhoto, LostPhoto, *[RemotePhoto] * len(allowed)]
    assert [type(photo) for photo in found] == kinds
    assert "use http, https, s3, gs" in found[0].reason  # type: ignore[attr-defined]
    assert "write an IPv6 address in full" in found[3].reason  # type: ignore[attr-defined]


def test_temporary_errors_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(urls.time, "sleep", waits.append)

    class Failing(Handler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_error(int(self.path[1:4]))

    with hosting(Failing) as address:
        cases = {f"{address}/{status}.jpg": 3 for status in (408, 429, 500, 501, 503)}
        cases |= {f"{address}/{status}.jpg": 1 for status in (400, 404, 409, 430)}
        cases |= {"http://127.0.0.1:1/refused": 3, "file:///not found": 1}
        for url, tries in cases.items():
            waits.clear()
            reason = rf"cannot be read \(.*{Path(url).stem}.*check the URL"
            with pytest.raises(ImageNotFoundError, match=reason):
                RemotePhoto(name="a.jpg", url=url).read()
            assert waits == [1, 2][: tries - 1], url


def test_a_photo_that_is_too_large_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("captioner_serving.batch.inputs.photos.LARGEST_FILE", 4)
    monkeypatch.setattr(urls, "_PIECE", 1)
    for data in (b"four", b"fives"):
        (tmp_path / f"{len(data)}.jpg").write_bytes(data)
    four, five = (RemotePhoto(name="a", url=f"file://{tmp_path}/{size}.jpg") for size in (4, 5))
    assert four.read() == b"four"
    with pytest.raises(ImageTooLargeError, match="has more than 4 bytes: is it a photo"):
        five.read()


def test_urls_of_other_schemes_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingExtraError, match=r"reading s3:// URLs .*captioner\[remote\]"):
        RemotePhoto(name="a", url="s3://bucket/a.jpg").read()


def first_of(**inputs: Any) -> Photo:
    (photo,) = Inputs(**inputs).photos()
    return photo


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[0:0:0:0:0:ffff:7f00:1]"])
def test_urls_in_lists_cannot_lead_to_the_local_network(
    server: str, tmp_path: Path, photos: Photos, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of the tests is at 127.0.0.1, which is no public address."""
    monkeypatch.setattr(urls.time, "sleep", None)  # it is not tried again
    photos(1)
    (tmp_path / "list").write_text(f"http://{host}:{urlsplit(server).port}/photos/p000.jpg\n")
    lists = (str(tmp_path / "list"),)
    with pytest.raises(ImageNotFoundError, match=r"private address.* add --allow-private"):
        first_of(lists=lists).read()
    if host != "[0:0:0:0:0:ffff:7f00:1]":  # which a system may not connect to
        assert first_of(lists=lists, allow_private=True).read()[:2] == b"\xff\xd8"


def test_urls_on_the_command_line_cannot_redirect_to_the_local_network(
    server: str, photos: Photos
) -> None:
    photos(1)

    class Redirect(Handler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(302)
            self.send_header("Location", f"{server}/photos/p000.jpg")
            self.end_headers()
            with suppress(OSError):  # an endless body, which must not be read
                while True:
                    self.wfile.write(bytes(1 << 16))

    with hosting(Redirect) as address:
        same, other = (
            f"{address}/a.jpg".replace("127.0.0.1", h) for h in ("127.0.0.1", "localhost")
        )
        assert first_of(sources=(same,)).read()[:2] == b"\xff\xd8"
        with pytest.raises(ImageNotFoundError, match=r"leads to 127\.0\.0\.1.* --allow-private"):
            first_of(sources=(other,)).read()
        assert first_of(sources=(other,), allow_private=True).read()[:2] == b"\xff\xd8"


@pytest.mark.parametrize("private_at", [0, 1, 2])
def test_every_address_of_a_host_is_checked(
    monkeypatch: pytest.MonkeyPatch, private_at: int
) -> None:
    """When all are public, the next one is tried after one that refuses or does not answer."""
    addresses = ["1.1.1.1", "2606:4700::1111"]
    addresses.insert(private_at, "10.0.0.1")
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_, **__: [(0, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses],
    )
    tried: list[str] = []

    def refuse(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        assert request.extensions["sni_hostname"] == "several.example"
        tried.append(request.url.host)
        raise httpx.ConnectError("refused") if tried[1:] else httpx.ConnectTimeout("no answer")

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", refuse)
    request = httpx.Request("GET", "http://several.example/photo.jpg")
    with networks.PublicTransport() as transport:
        with pytest.raises(httpx.ConnectError, match=r"private address 10\.0\.0\.1"):
            transport.handle_request(request)
        assert not tried
        addresses.remove("10.0.0.1")
        with pytest.raises(httpx.ConnectError, match="refused"):
            transport.handle_request(request)
    assert tried == addresses


def test_the_checked_address_is_the_one_connected_to(
    monkeypatch: pytest.MonkeyPatch, server: str, photos: Photos
) -> None:
    """A name that has a public address when it is looked up, and a private one the next time."""
    photos(1)
    port = int(urlsplit(server).port or 0)
    real, answers = socket.getaddrinfo, ["127.0.0.2", "127.0.0.1", "127.0.0.1"]

    def rebinding(host: Any, *rest: Any, **more: Any) -> Any:
        if host != "rebinding.example":
            return real(host, *rest, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(networks, "_is_public", lambda address: str(address) == "127.0.0.2")
    monkeypatch.setattr(urls, "_TRIES", 1)
    url = f"http://rebinding.example:{port}/photos/p000.jpg"
    with pytest.raises(ImageNotFoundError, match=r"cannot be read .*refused"):
        RemotePhoto(name=url, url=url, policy="public").read()
    assert len(answers) == 2  # it was looked up once; at 127.0.0.2 nobody listens
