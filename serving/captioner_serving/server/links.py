"""Photos by their address, for a server that was started with --allow-urls.

Whoever names an address is a stranger: the guard is the batch's own, so that no request of ours
goes into the network that the server stands in.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache

import httpx
from starlette.concurrency import run_in_threadpool

from captioner.errors import ImageNotFoundError, ImageTooLargeError
from captioner.paths import is_web_address
from captioner_serving.batch.inputs.networks import public_addresses, without_body
from captioner_serving.server.problems import BusyError

__all__ = ["AsyncPublicTransport", "fetch"]

_SECONDS = 15.0  # for all of it: names, redirects, heads and the photo
_AT_ONCE = asyncio.Semaphore(8)  # each may hold a photo


class AsyncPublicTransport(httpx.AsyncHTTPTransport):
    """The batch's PublicTransport in the server's loop, where a deadline ends whatever it does."""

    def __init__(self, own: str | None = None) -> None:
        super().__init__(verify=_tls(), limits=httpx.Limits(max_keepalive_connections=0))
        self._own = own

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Look the host up, and connect to what was looked at."""
        url = request.url
        request.extensions = {**request.extensions, "sni_hostname": url.host}
        problem: httpx.TransportError = httpx.ConnectError(f"{url.host} has no address")
        for address in await run_in_threadpool(public_addresses, request, own=self._own):
            request.url = url.copy_with(host=address)
            try:
                response = await super().handle_async_request(request)
                if response.has_redirect_location:
                    await response.aclose()
                    return without_body(response)
                return response
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem = error  # the next address may answer
            finally:
                request.url = url  # redirects are relative to it
        raise problem


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # reads all certificates


async def fetch(address: str, *, most: int) -> bytes:
    """Fetch a photo of at most so many bytes.

    Raises:
        ImageNotFoundError: it is no address of the web, leads to a private one, or does not answer
            with a file in time.
        ImageTooLargeError: it has more bytes.
        BusyError: others are being fetched, and take their time.
    """
    shown = address[:200]
    if not is_web_address(address):
        raise ImageNotFoundError(f"{shown!r} is not an http or https address")
    try:
        async with asyncio.timeout(_SECONDS):
            await _AT_ONCE.acquire()
    except TimeoutError as error:
        raise BusyError(5, "too many photos are being fetched") from error
    try:
        async with asyncio.timeout(_SECONDS):
            data = await _read(address, most)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
        raise ImageNotFoundError(f"{shown} cannot be fetched: {_reason(error)}") from error
    finally:
        _AT_ONCE.release()
    if len(data) > most:
        raise ImageTooLargeError(f"{shown} has more than {most / 1e6:g} MB")
    return data


async def _read(address: str, most: int) -> bytes:
    """Read a photo, or as much of a larger one as shows that it is larger."""
    data = bytearray()
    async with (
        httpx.AsyncClient(
            transport=AsyncPublicTransport(),
            trust_env=False,
            follow_redirects=True,
            timeout=_SECONDS,
            headers={"Accept-Encoding": "identity"},  # here no few bytes become gigabytes
        ) as client,
        client.stream("GET", address) as response,
    ):
        response.raise_for_status()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > most:
                break
    return bytes(data)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"the answer is {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return f"it did not come within {_SECONDS:g} s"
    if isinstance(error.__cause__, ValueError):  # see check_address
        return "it leads to a private address"
    return "its server does not answer"
