"""Links that fsspec reads, and what one out of a list may not do."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from typing import TYPE_CHECKING, Any

from captioner.errors import (
    CaptionerError,
    ImageNotFoundError,
    ImageTooLargeError,
    MissingExtraError,
)

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["fetch", "is_url", "open_file_system", "reason_of"]

_TRIES = 3  # networks fail in passing


def is_url(name: str) -> bool:
    """Whether a name is a URL and not a path."""
    return re.match(r"[a-z][a-z0-9+.-]*://", name, re.IGNORECASE) is not None


def fetch(url: str, *, limit: int, guarded: bool = False) -> bytes:
    """Read a file of at most `limit` bytes.

    Args:
        url: what to read.
        limit: bytes.
        guarded: whether a redirect to a private address is refused.

    Raises:
        ImageError: it cannot be read, or is larger.
        MissingExtraError: the extra that reads such URLs is not there.

    """
    for attempt in range(1, _TRIES + 1):
        try:
            system, path = open_file_system(url, guarded=guarded)
            with system.open(path, "rb") as file:
                data: bytes = file.read(limit + 1)
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


def open_file_system(url: str, *, guarded: bool = False) -> tuple[AbstractFileSystem, Any]:
    """Give the file system of a link, and the path in it.

    Raises:
        MissingExtraError: the extra that reads such links is not there.

    """
    try:
        import fsspec

        web = guarded and url.lower().startswith(("http://", "https://"))
        options = {"get_client": _guarded_client} if web else {}
        system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise MissingExtraError(f"reading {url.split(':')[0]}:// links", "remote") from error
    return system, path


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


async def _guarded_client(**options: Any) -> Any:
    """Open an HTTP client that is not led into the network that this machine stands in.

    Only aiohttp's own redirects come here; it follows none to anything but http and https.
    """
    import aiohttp

    async def look(_: object, __: object, parameters: Any) -> None:
        place = parameters.response.headers.get("Location", "")
        host = parameters.url.join(type(parameters.url)(place)).host
        for *_, address in await asyncio.get_running_loop().getaddrinfo(host, None):
            if not ipaddress.ip_address(str(address[0]).split("%")[0]).is_global:
                raise ValueError(
                    f"it redirects to the private address of {host}; if you trust the list, add "
                    "--allow-private"
                )

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(look)
    return aiohttp.ClientSession(trace_configs=[trace], **options)
