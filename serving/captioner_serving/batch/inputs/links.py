"""Links that fsspec reads, and what one out of a list may not do."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from captioner.errors import (
    CaptionerError,
    ImageNotFoundError,
    ImageTooLargeError,
    MissingExtraError,
)
from captioner.paths import is_web_address

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Reach", "fetch", "is_url", "open_file_system", "read_up_to", "reason_of"]

Reach = Literal["public", "own", "any"]
"""Where an http link may lead: to public addresses, to its own host too, or anywhere."""

_TRIES = 3  # networks fail in passing


def is_url(name: str) -> bool:
    """Whether a name is a URL and not a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", name, re.IGNORECASE) is not None


def fetch(url: str, *, limit: int, reach: Reach = "own") -> bytes:
    """Read a file of at most `limit` bytes.

    Args:
        url: what to read.
        limit: bytes.
        reach: where it may lead, by its name and by redirects.

    Raises:
        ImageError: it cannot be read, or is larger.
        MissingExtraError: the extra that reads such URLs is not there.

    """
    for attempt in range(1, _TRIES + 1):
        try:
            system, path = open_file_system(url, reach)
            with system.open(path, "rb") as file:
                data = read_up_to(file, limit + 1)
            break
        except CaptionerError:
            raise
        except Exception as error:  # every file system has exceptions of its own
            passing = not isinstance(error, FileNotFoundError | PermissionError | ValueError)
            if attempt < _TRIES and passing:
                time.sleep(attempt)
                continue
            raise ImageNotFoundError(
                f"{url} cannot be read ({reason_of(error)}): check the link"
            ) from error
    if len(data) > limit:
        raise ImageTooLargeError(f"{url} has more than {limit:,} bytes: is it a photo?")
    return data


def open_file_system(url: str, reach: Reach = "own") -> tuple[AbstractFileSystem, Any]:
    """Give the file system of a link, and the path in it.

    Raises:
        MissingExtraError: the extra that reads such links is not there.
        ValueError: the link is none.

    """
    try:
        import fsspec

        options = {}
        if reach != "any" and is_web_address(url):
            from captioner_serving.batch.inputs.networks import guarded_client

            own = urlsplit(url).hostname if reach == "own" else None
            options["get_client"] = partial(guarded_client, own) if own else guarded_client
        system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise MissingExtraError(f"reading {url.split(':')[0]}:// links", "remote") from error
    return system, path


def read_up_to(file: IO[bytes], size: int) -> bytes:
    """Read so many bytes, or all that there are; a link itself gives what has come by now."""
    data = bytearray()
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return bytes(data)


def reason_of(error: BaseException) -> str:
    """Say why; fsspec turns whatever a web server answers into a FileNotFoundError of the link."""
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    if status and message:
        return f"{status} {message}"
    if isinstance(error, FileNotFoundError):
        return "not found"
    return str(error) or type(error).__name__
