"""Photos at URLs (s3://, gs://, https://, ...), by fsspec and the file systems of its extras."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from captioner.errors import (
    CaptionerError,
    ImageNotFoundError,
    ImageTooLargeError,
    MissingExtraError,
)
from captioner_serving.batch.inputs.archives import ARCHIVES, tar_stream_photos
from captioner_serving.batch.inputs.photos import LostPhoto, Photo, RemotePhoto

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["fetch", "is_url", "remote_photos"]

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
            system, path = _file_system(url, guarded=guarded)
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
                f"{url} cannot be read ({_reason(error)}): check the link"
            ) from error
    if len(data) > limit:
        raise ImageTooLargeError(f"{url} has more than {limit:,} bytes: is it a photo?")
    return data


def remote_photos(url: str, suffixes: tuple[str, ...], *, recursive: bool) -> Iterator[Photo]:
    """List what a URL stands for: a photo, a tar file, a glob, a folder or bucket.

    Raises:
        MissingExtraError: the extra that reads such URLs is not there.

    """
    web = url.lower().startswith(("http://", "https://"))
    bare = re.split(r"[?#]", url)[0].lower() if web else url.lower()
    try:
        system, path = _file_system(url)
        if bare.endswith(".zip"):
            reason = f"{url}: zip files are not read over links; download it, or make it a .tar"
            yield LostPhoto(name=url, reason=reason)
        elif bare.endswith(ARCHIVES):
            with system.open(path, "rb") as file:
                yield from tar_stream_photos(file, url, suffixes)
        elif web or bare.endswith(suffixes):
            if any(sign in url for sign in "*[") and not web:
                matches = sorted(system.glob(path))
                if not matches:
                    yield LostPhoto(name=url, reason=f"{url} matches nothing: check the pattern")
                for match in matches:
                    yield _photo(system, match)
            else:
                yield RemotePhoto(name=url, url=url)
        else:
            for folder, folders, files in system.walk(path, on_error="raise"):
                folders.sort() if isinstance(folders, list) else None
                for name in sorted(files):
                    if name.lower().endswith(suffixes) and not name.startswith("."):
                        yield _photo(system, f"{folder.rstrip('/')}/{name}")
                if not recursive:
                    return
    except CaptionerError:
        raise
    except Exception as error:
        yield LostPhoto(
            name=url, reason=f"{url} cannot be listed ({_reason(error)}): check the link"
        )


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
                raise ValueError(f"it redirects to the private address of {host}")

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(look)
    return aiohttp.ClientSession(trace_configs=[trace], **options)


def _reason(error: BaseException) -> str:
    """Say why; fsspec turns whatever a web server answers into a FileNotFoundError of the link."""
    if isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    status, message = getattr(error, "status", None), getattr(error, "message", None)
    if status and message:
        return f"{status} {message}"
    if isinstance(error, FileNotFoundError):
        return "not found"
    return str(error) or type(error).__name__


def _photo(system: AbstractFileSystem, path: str) -> Photo:
    url = system.unstrip_protocol(path)
    return RemotePhoto(name=url, url=url)


def _file_system(url: str, *, guarded: bool = False) -> tuple[AbstractFileSystem, Any]:
    try:
        import fsspec

        web = guarded and url.lower().startswith(("http://", "https://"))
        options = {"get_client": _guarded_client} if web else {}
        system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise MissingExtraError(f"reading {url.split(':')[0]}:// links", "remote") from error
    return system, path
