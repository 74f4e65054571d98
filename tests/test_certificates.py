"""Downloads over https: whose certificates are accepted, and that they are loaded once."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from captioner import Captioner, DownloadError, ImageNotFoundError
from captioner.certificates import tls_context
from captioner.sources import as_source
from captioner_serving.batch import caption_batch
from captioner_serving.batch.inputs import links
from captioner_serving.batch.inputs.links import RemotePhoto
from captioner_serving.batch.inputs.sources import Inputs
from captioner_serving.server.links import WebPhoto
from captioner_training.prepare.download import fetch, fetch_text
from tests.launcher import Run
from tests.web import hosting


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Load the certificates anew in each test, and after it; try again without a pause."""
    monkeypatch.setattr(links.time, "sleep", lambda _: None)
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()


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
    assert fetch_text(f"{host}/none") is None
    assert fetch(address, tmp_path).read_bytes() == photo.read_bytes()
    for options in {"sources": (address,)}, {"lists": (str(tmp_path / "list"),)}:
        (tmp_path / "list").write_text(address)
        inputs = Inputs(**options, allow_private="lists" in options)
        assert [record["caption"] for record in caption_batch(inputs, captioner=captioner)] == [
            said
        ]
    for read in (
        lambda: as_source(another),
        lambda: RemotePhoto(name="a", url=another).read(),
        lambda: WebPhoto(another, 10**9, "127.0.0.1").read(),
    ):
        with pytest.raises(ImageNotFoundError, match=r"IP address mismatch|does not answer"):
            read()
    result = run_main("caption", another)
    assert result.returncode == 1 and "IP address mismatch" in result.stderr


def test_a_certificate_of_an_unknown_authority_is_refused(host: str, photo: Path) -> None:
    for read in as_source, lambda url: RemotePhoto(name="a", url=url).read():
        with pytest.raises(ImageNotFoundError, match="unable to get local issuer certificate"):
            read(f"{host}/{photo.name}")


def test_certificates_are_loaded_once(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    load = ssl.SSLContext.load_verify_locations
    monkeypatch.setattr(
        ssl.SSLContext,
        "load_verify_locations",
        lambda *options, **more: (loaded.append(options), load(*options, **more)),
    )
    with hosting(photo.parent) as host:
        address = f"{host}/{photo.name}"
        for _ in range(2):
            as_source(address)
            RemotePhoto(name="a", url=address).read()
            WebPhoto(address, 10**9, "127.0.0.1").read()
            fetch_text(address)
    assert len(loaded) == 1


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_certificates_that_cannot_be_loaded_are_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_main: Run
) -> None:
    path = tmp_path / "authority.pem"
    if kind == "empty":
        path.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    monkeypatch.setattr(links.time, "sleep", None)  # it is not tried again
    wanted = rf"SSL_CERT_FILE={path} cannot be loaded: (No such file|.*no certificate)"
    address = "http://127.0.0.1:9/a.jpg"
    for read in as_source, lambda url: RemotePhoto(name="a", url=url).read():
        with pytest.raises(ImageNotFoundError, match=wanted):
            read(address)
    with pytest.raises(DownloadError, match=wanted):
        fetch(address, tmp_path)
    with pytest.raises(ImageNotFoundError, match="this server cannot load the certificates"):
        WebPhoto(address, 10**9, "127.0.0.1").read()
    result = run_main("caption", address)
    assert (result.returncode, "Traceback" in result.stderr) == (1, False)
    assert "SSL_CERT_FILE" in result.stderr
