"""Files behind links: http and https by httpx, all else (s3, gs, ...) by fsspec."""

from __future__ import annotations

import io
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

import httpx

from captioner.errors import (
    CaptionerError,
    ImageNotFoundError,
    ImageTooLargeError,
    MissingExtraError,
)
from captioner.paths import is_web_address
from captioner_serving.batch.inputs.networks import PublicTransport

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Reach", "Readable", "fetch", "file_system", "is_url", "open_in_pieces", "reason_of"]

Reach = Literal["public", "own", "any"]
"""Where an http link may lead: to public addresses, to its own host too, or anywhere."""

_TRIES = 3  # networks fail in passing
_SECONDS = 120.0  # that each piece of an archive may take to come, as a photo may
_PIECE = 1 << 20  # bytes
_STALLED = "its link is stalled: no more came within {:g} s"


class Readable(Protocol):
    """What is read from its beginning to its end."""

    def read(self, size: int) -> bytes:
        """Read at most so many bytes; none only at the end."""

    def tell(self) -> int:
        """Count the bytes that were read."""


def is_url(name: str) -> bool:
    """Whether a name is a link and not a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", name, re.IGNORECASE) is not None


def fetch(url: str, *, limit: int, reach: Reach = "own") -> bytes:
    """Read a file of at most `limit` bytes.

    Raises:
        ImageError: it cannot be read, or is larger.
        MissingExtraError: the extra that reads such links is not there.

    """
    for attempt in range(1, _TRIES + 1):
        try:
            with _open(url, reach) as file:
                data = _read_up_to(file, limit + 1)
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
    if len(data) > limit:
        raise ImageTooLargeError(f"{url} has more than {limit:,} bytes: is it a photo?")
    return data


@contextmanager
def open_in_pieces(url: str, reach: Reach) -> Iterator[Readable]:
    """Open a file each megabyte of which has to come in time: others wait behind it.

    Raises:
        MissingExtraError: the extra that reads such links is not there.
        Exception: what the file system raises; TimeoutError, where nothing comes.

    """
    with _open(url, reach) as file:
        yield _PiecewiseFile(file)


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
def _open(url: str, reach: Reach) -> Iterator[IO[bytes] | _Answer]:
    if not is_web_address(url):
        system, path = file_system(url)
        with system.open(path, "rb") as file:
            yield file
        return
    host = httpx.URL(url).host
    transport = None if reach == "any" else PublicTransport(host if reach == "own" else None)
    # What the server packs all the same stays packed: no few bytes become gigabytes here.
    headers = {"Accept-Encoding": "identity"}
    with (
        httpx.Client(
            transport=transport,
            trust_env=False,
            follow_redirects=True,
            timeout=_SECONDS,
            headers=headers,
        ) as client,
        client.stream("GET", url) as response,
    ):
        response.raise_for_status()
        yield _Answer(response)


class _Answer:
    """The body of a response, read as a file is."""

    def __init__(self, response: httpx.Response) -> None:
        self._parts = response.iter_raw(_PIECE)
        self._part = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Read at most so many bytes; none only at the end."""
        if not self._part:
            self._part = memoryview(next(self._parts, b""))
        data, self._part = self._part[:size], self._part[size:]
        return bytes(data)


class _PiecewiseFile:
    """See open_in_pieces."""

    def __init__(self, file: IO[bytes] | _Answer) -> None:
        self._file = file
        self._piece = io.BytesIO()
        self._place = 0

    def read(self, size: int) -> bytes:
        """Read at most so many bytes; none only at the end.

        Raises:
            TimeoutError: they did not come in time.

        """
        if not (data := self._piece.read(size)):
            self._piece = io.BytesIO(_read_up_to(self._file, _PIECE, seconds=_SECONDS))
            data = self._piece.read(size)
        self._place += len(data)
        return data

    def tell(self) -> int:
        """Count the bytes that were read."""
        return self._place


def _read_up_to(file: IO[bytes] | _Answer, size: int, *, seconds: float = math.inf) -> bytes:
    """Read so many bytes, or all that there are; a link itself gives what has come by now."""
    data, end = bytearray(), time.monotonic() + seconds
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
        if time.monotonic() > end:
            raise TimeoutError(_STALLED.format(seconds))
    return bytes(data)


def _is_passing(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    lasting = FileNotFoundError | PermissionError | ValueError
    lasting |= httpx.InvalidURL | httpx.UnsupportedProtocol
    private = isinstance(error.__cause__, ValueError)  # of an address that was looked at
    return not isinstance(error, lasting) and not private
