"""Photos by their address, for a server that was started with --allow-urls.

Whoever names an address is a stranger: the guard is the batch's own, so that no request of ours
goes into the network that the server stands in.
"""

from __future__ import annotations

import asyncio
import time

import httpx

from captioner.errors import ImageNotFoundError, ImageTooLargeError
from captioner.paths import is_web_address
from captioner_serving.batch.inputs.networks import PublicTransport
from captioner_serving.server.problems import BusyError

__all__ = ["fetch"]

_SECONDS = 15.0
_AT_ONCE = asyncio.Semaphore(8)  # each may hold a photo


async def fetch(address: str, *, most: int) -> bytes:
    """Fetch a photo of at most so many bytes.

    Raises:
        ImageNotFoundError: it is no address of the web, leads to a private one, or does not answer
            with a file in time.
        ImageTooLargeError: it has more bytes.
        BusyError: others are being fetched, and take their time.

    """
    if not is_web_address(address):
        raise ImageNotFoundError(f"{address[:200]!r} is not an http or https address")
    try:
        async with asyncio.timeout(_SECONDS):
            await _AT_ONCE.acquire()
    except TimeoutError as error:
        raise BusyError(5, "too many photos are being fetched") from error
    try:
        return await asyncio.to_thread(_fetch, address, most)
    finally:
        _AT_ONCE.release()


def _fetch(address: str, most: int) -> bytes:
    data, end = bytearray(), time.monotonic() + _SECONDS
    try:
        with (
            httpx.Client(
                transport=PublicTransport(),
                trust_env=False,
                follow_redirects=True,
                timeout=_SECONDS,
                headers={"Accept-Encoding": "identity"},  # here no few bytes become gigabytes
            ) as client,
            client.stream("GET", address) as response,
        ):
            response.raise_for_status()
            for piece in response.iter_raw():
                data += piece
                if len(data) > most:
                    raise ImageTooLargeError(f"{address} has more than {most / 1e6:g} MB")
                if time.monotonic() > end:
                    raise httpx.ReadTimeout("it took too long")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise ImageNotFoundError(f"{address} cannot be fetched: {_reason(error)}") from error
    return bytes(data)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"the answer is {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException):
        return f"it did not come within {_SECONDS:g} s"
    if isinstance(error.__cause__, ValueError):  # see check_address
        return "it leads to a private address"
    return "its server does not answer"
