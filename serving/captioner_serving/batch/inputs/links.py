"""Photos and archives behind links: http and https by httpx, all else (s3, gs, ...) by fsspec."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx

from captioner.errors import (
    CaptionerError,
    ImageNotFoundError,
    ImageTooLargeError,
    MissingExtraError,
)
from captioner.paths import is_web_address
from captioner.vision.image import LARGEST_FILE
from captioner_serving.batch.inputs.networks import PublicTransport, Transport
from captioner_serving.batch.inputs.photos import Photo

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = [
    "AddressPolicy",
    "LinkStream",
    "RemotePhoto",
    "file_system",
    "is_url",
    "open_link",
    "reason_of",
]

AddressPolicy = Literal["public", "own", "any"]
"""Where an http link may lead: to public addresses, to its own host too, or anywhere."""

_TRIES = 3  # networks fail in passing
_SECONDS = 120.0  # that each piece of an archive may take to come, as a photo may
_PIECE = 1 << 20  # bytes
_STALLED = "its link is stalled: no more came within {:g} s"


@dataclass(frozen=True, kw_only=True)
class RemotePhoto(Photo):
    """A file behind a link."""

    url: str
    policy: AddressPolicy = "own"

    def read(self) -> bytes:
        """See Photo."""
        url = self.url
        for attempt in range(1, _TRIES + 1):
            try:
                with _open(url, self.policy) as pieces:
                    data = _join(pieces, LARGEST_FILE + 1)
                break
            except CaptionerError:
                raise
            except Exception as error:  # every file system has exceptions of its own
                if attempt < _TRIES and _is_passing(error):
                    time.sleep(attempt)
                    continue
                raise ImageNotFoundError(
                    f"{url} cannot be read ({reason_of(error)}): check the link"
                ) from error
        if len(data) > LARGEST_FILE:
            raise ImageTooLargeError(f"{url} has more than {LARGEST_FILE:,} bytes: is it a photo?")
        return data


class LinkStream:
    """A file behind a link, read from its beginning to its end, a megabyte at a time.

    Each megabyte has to come in time: other photos wait behind it.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")
        self._place = 0

    def read(self, size: int) -> bytes:
        """Read at most so many bytes; none only at the end.

        Raises TimeoutError: they did not come in time.
        """
        if not self._piece:
            self._piece = memoryview(_join(self._pieces, _PIECE, end=time.monotonic() + _SECONDS))
        data, self._piece = self._piece[:size], self._piece[size:]
        self._place += len(data)
        return bytes(data)

    def tell(self) -> int:
        """Count the bytes that were read."""
        return self._place


@contextmanager
def open_link(url: str, policy: AddressPolicy) -> Iterator[LinkStream]:
    """Open a file behind a link; whatever its file system raises comes through."""
    with _open(url, policy) as pieces:
        yield LinkStream(pieces)


def is_url(name: str) -> bool:
    """Whether a name is a link and not a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", name, re.IGNORECASE) is not None


def file_system(url: str) -> tuple[AbstractFileSystem, Any]:
    """Give the file system of a link that is not of the web, and the path in it.

    Raises:
        MissingExtraError: the extra that reads such links is not there.
        ValueError: there is no such file system.
    """
    try:
        import fsspec

        found: tuple[AbstractFileSystem, Any] = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtraError(f"reading {url.split(':')[0]}:// links", "remote") from error
    return found


def reason_of(error: BaseException) -> str:
    """Say why a link cannot be read."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"{error.response.status_code} {error.response.reason_phrase}".strip()
    if isinstance(error, httpx.TimeoutException):
        return _STALLED.format(_SECONDS)
    if isinstance(error, FileNotFoundError):
        return "not found"
    return str(error) or type(error).__name__


@contextmanager
def _open(url: str, policy: AddressPolicy) -> Iterator[Iterator[bytes]]:
    """Open a link: its bytes as they come."""
    if not is_web_address(url):
        system, path = file_system(url)
        with system.open(path, "rb") as file:
            yield iter(lambda: file.read(_PIECE), b"")
        return
    own = httpx.URL(url).host if policy == "own" else None
    with (
        httpx.Client(
            transport=Transport() if policy == "any" else PublicTransport(own),
            trust_env=False,
            follow_redirects=True,
            timeout=_SECONDS,
            # What the server packs all the same stays packed: no few bytes become gigabytes here.
            headers={"Accept-Encoding": "identity"},
        ) as client,
        client.stream("GET", url) as response,
    ):
        response.raise_for_status()
        yield response.iter_raw()


def _join(pieces: Iterator[bytes], most: int, *, end: float | None = None) -> bytes:
    """Take so many bytes or a few more, or all that there are."""
    data = bytearray()
    for piece in pieces:
        data += piece
        if end is not None and time.monotonic() > end:
            raise TimeoutError(_STALLED.format(_SECONDS))
        if len(data) >= most:
            break
    return bytes(data)


def _is_passing(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    lasting = FileNotFoundError | PermissionError | ValueError
    lasting |= httpx.InvalidURL | httpx.UnsupportedProtocol
    private = isinstance(error.__cause__, ValueError)  # of an address that was looked at
    return not isinstance(error, lasting) and not private
