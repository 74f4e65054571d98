"""Photos at URLs: http and https with httpx, others (s3, gs, ...) with fsspec."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx

from captioner.certificates import CertificatesError
from captioner.errors import CaptionerError, ImageNotFoundError, MissingExtraError
from captioner.shared.paths import is_web_address
from captioner_serving.batch.inputs.photos import Photo, check_size
from captioner_serving.networks import PublicTransport, Transport, stream_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

AddressPolicy = Literal["public", "same-host", "any"]
"""Addresses that an http URL may lead to. "same-host": public ones, and any of the URL's host."""

_TRIES = 3
_SECONDS = 120.0  # time limit of a request
_PIECE = 1 << 20  # bytes
# The environment variables that file systems need: credentials, proxies, certificates and folders.
_VARIABLES = re.compile(
    r"(AWS|AZURE|GOOGLE|FSSPEC|HF)_.*|(https?|ftp|all|no)_proxy|SSL_CERT_(FILE|DIR)"
    r"|(REQUESTS|CURL)_CA_BUNDLE|HOME|USERPROFILE|APPDATA|LOCALAPPDATA",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class RemotePhoto(Photo):
    """A photo at a URL."""

    url: str
    policy: AddressPolicy = "same-host"

    def read(self) -> bytes:
        """See Photo."""
        for attempt in range(1, _TRIES + 1):
            data = bytearray()
            try:
                with _open(self.url, self.policy) as pieces:
                    for piece in pieces:
                        data += piece
                        check_size(self.url, len(data))
                break
            except CaptionerError:
                raise
            except Exception as error:  # each file system has its own exceptions
                if attempt == _TRIES or not _is_temporary(error):
                    reason = f"{self.url} cannot be read ({reason_of(error)}): check the URL"
                    raise ImageNotFoundError(reason) from error
                time.sleep(attempt)
        return bytes(data)


def is_url(name: str) -> bool:
    """Return whether a name is a URL, not a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", name, re.IGNORECASE) is not None


def url_environment() -> dict[str, str]:
    """Return the environment variables that reading URLs needs."""
    return {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}


def file_system(url: str) -> tuple[AbstractFileSystem, Any]:
    """Return the file system of a URL that is not http or https, and the path in it."""
    try:
        import fsspec

        system: tuple[AbstractFileSystem, Any] = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtraError(f"reading {url.split(':')[0]}:// URLs", "remote") from error
    return system


def reason_of(error: BaseException) -> str:
    """Return why a URL cannot be read."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.response.status_code} {error.response.reason_phrase}".strip()
    if isinstance(error, httpx.TimeoutException):
        return f"no data for {_SECONDS:g} s"
    if isinstance(error, FileNotFoundError):
        return "not found"
    return str(error) or type(error).__name__


@contextmanager
def _open(url: str, policy: AddressPolicy) -> Iterator[Iterator[bytes]]:
    """Open a URL; yield its bytes in pieces."""
    if not is_web_address(url):
        system, path = file_system(url)
        with system.open(path, "rb") as file:
            yield iter(lambda: file.read(_PIECE), b"")
        return
    trusted_host = httpx.URL(url).host if policy == "same-host" else None
    transport = Transport() if policy == "any" else PublicTransport(trusted_host)
    with stream_url(url, transport, timeout=_SECONDS) as pieces:
        yield pieces


def _is_temporary(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    permanent = FileNotFoundError | PermissionError | ValueError | CertificatesError
    permanent |= httpx.InvalidURL | httpx.UnsupportedProtocol
    is_private = isinstance(error.__cause__, ValueError)  # see check_address
    return not isinstance(error, permanent) and not is_private
