"""Downloads over https: whose certificates are accepted, and that they are loaded once."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trustme

from captioner import Captioner, DownloadError, ImageNotFoundError
from captioner.certificates import tls_context
from captioner.images import as_source
from captioner_serving.batch import caption_batch
from captioner_serving.batch.inputs import urls
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.batch.inputs.urls import RemotePhoto
from captioner_serving.server import service
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.urls import WebPhoto
from captioner_training.prepare.download import fetch
from tests.launcher import Run
from tests.serving.server.running import serving
from tests.web import hosting


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the certificates anew in each test; try again without a pause."""
    tls_context.cache_clear()
    clock = SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic)
    monkeypatch.setattr(urls, "time", clock)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def host(photo: Path, authority: trustme.CA) -> Iterator[str]:
    """A server whose certificate is for localhost; its address has this name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with hosting(photo.parent, context) as address:
        yield address.replace("127.0.0.1", "localhost")


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))


@pytest.mark.usefixtures("trusted")
def test_a_certificate_of_a_trusted_authority_is_accepted_for_its_name_alone(
    host: str, photo: Path, tmp_path: Path, captioner: Captioner, run_main: Run
) -> None:
    address = f"{host}/{photo.name}"
    another = address.replace("localhost", "127.0.0.1")  # not the name of the certificate
    said = captioner.caption(photo).text
    assert as_source(address) == photo.read_bytes()
    assert WebPhoto(address, 10**9, "localhost").read() == photo.read_bytes()
    assert fetch(address, tmp_path).read_bytes() == photo.read_bytes()
    (tmp_path / "list").write_text(address)
    on_the_command_line = Inputs(sources=(address,))
    listed = Inputs(lists=(str(tmp_path / "list"),), allow_private=True)
    for inputs in (on_the_command_line, listed):
        (record,) = caption_batch(inputs, captioner=captioner)
        assert record["caption"] == said
    for read, reason in (
        (lambda: as_source(another), "IP address mismatch"),
        (lambda: RemotePhoto(name="a", url=another).read(), "IP address mismatch"),
        (lambda: WebPhoto(another, 10**9, "127.0.0.1").read(), "its certificate is not valid"),
    ):
        with pytest.raises(ImageNotFoundError, match=reason):
            read()
    result = run_main("caption", another)
    assert result.returncode == 1 and "IP address mismatch" in result.stderr


def test_a_certificate_of_an_unknown_authority_is_refused(
    host: str, photo: Path, tmp_path: Path
) -> None:
    address, reason = f"{host}/{photo.name}", "unable to get local issuer certificate"
    for read in as_source, lambda url: RemotePhoto(name="a", url=url).read():
        with pytest.raises(ImageNotFoundError, match=reason):
            read(address)
    with pytest.raises(DownloadError, match=reason):
        fetch(address, tmp_path / "downloads", tries=1)
    with pytest.raises(ImageNotFoundError, match="its certificate is not valid"):
        WebPhoto(address, 10**9, "localhost").read()


@pytest.mark.usefixtures("trusted")
def test_the_server_s_processes_trust_the_same_authority(
    host: str, photo: Path, captioner: Captioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WebPhoto", partial(WebPhoto, trusted_host="localhost"))
    asked = {"image_url": (None, f"{host}/{photo.name}")}
    with serving(captioner, ServerConfig(allow_urls=True)) as url:
        (record,) = httpx.post(f"{url}/api/caption", files=asked, timeout=60).json()["records"]
    assert record["caption"] == captioner.caption(photo).text


def test_certificates_are_loaded_once(
    photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []
    load = ssl.SSLContext.load_verify_locations
    monkeypatch.setattr(
        ssl.SSLContext,
        "load_verify_locations",
        lambda *options, **more: (loaded.append(options), load(*options, **more)),
    )
    with hosting(photo.parent) as host:
        address = f"{host}/{photo.name}"
        for number in range(2):
            with ThreadPoolExecutor(1) as pool:  # a new thread, as in every caption_iter
                pool.submit(as_source, address).result()
            RemotePhoto(name="a", url=address).read()
            WebPhoto(address, 10**9, "127.0.0.1").read()
            (folder := tmp_path / str(number)).mkdir()
            fetch(address, folder)
    assert len(loaded) == 1


@pytest.mark.usefixtures("trusted")
def test_connections_do_not_change_the_context_that_threads_share(
    host: str, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSSL forbids it while another thread makes a connection (SSL_CTX_set_alpn_protos)."""
    set_protocols: list[Any] = []
    monkeypatch.setattr(
        ssl.SSLContext, "set_alpn_protocols", lambda *options: set_protocols.append(options)
    )
    assert as_source(f"{host}/{photo.name}") == photo.read_bytes() and not set_protocols


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("missing", "No such file or directory"), ("empty", "it has no valid certificates")],
)
def test_certificates_that_cannot_be_loaded_are_named(
    kind: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_main: Run
) -> None:
    path = tmp_path / "authority.pem"
    if kind == "empty":
        path.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    monkeypatch.setattr(urls, "time", None)  # it is not tried again
    wanted = rf"SSL_CERT_FILE={path} cannot be loaded \({reason}\): correct or unset it"
    address = "http://127.0.0.1:9/a.jpg"
    for read in as_source, lambda url: RemotePhoto(name="a", url=url).read():
        with pytest.raises(ImageNotFoundError, match=wanted):
            read(address)
    with pytest.raises(DownloadError, match=wanted):
        fetch(address, tmp_path)
    with pytest.raises(ImageNotFoundError, match="this server cannot load the certificates"):
        WebPhoto(address, 10**9, "127.0.0.1").read()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for command in (("caption", address), ("serve", "--port", port)):
            result = run_main(*command)
            assert result.returncode and "Traceback" not in result.stderr
            assert f"SSL_CERT_FILE={path}" in result.stderr
