"""A photo by its address, fetched in the decoding process: for servers with --allow-urls.

Addresses come from strangers, so only public addresses are connected to, redirects included.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

import httpx

from captioner.errors import ImageNotFoundError, ImageTooLargeError
from captioner.paths import is_web_address
from captioner_serving.batch.inputs.networks import PrivateAddressError, PublicTransport

__all__ = ["WebPhoto"]

_SECONDS = 15.0  # for one step, such as a head; the pool ends it all after its own deadline

_LARGEST_PORT = 65_535


@dataclass(frozen=True)
class WebPhoto:
    """A photo behind an http or https address.

    url: the address.
    most: bytes that the photo may have.
    own: a host whose address may be private; for tests.
    """

    url: str
    most: int
    own: str | None = None

    @property
    def name(self) -> str:
        """The address, as messages show it."""
        return self.url[:200]

    def read(self) -> bytes:
        """Fetch the photo.

        Raises:
            ImageNotFoundError: it is no web address, leads to a private one, or does not answer
                with a file in time.
            ImageTooLargeError: it has more than `most` bytes.
        """
        if not is_web_address(self.url):
            raise ImageNotFoundError(f"{self.name!r} is not an http or https address")
        try:
            data = self._fetch()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OverflowError) as error:
            raise ImageNotFoundError(f"{self.name} cannot be fetched: {_reason(error)}") from error
        if len(data) > self.most:
            raise ImageTooLargeError(f"{self.name} has more than {self.most / 1e6:g} MB")
        return data

    def _fetch(self) -> bytes:
        """Return the photo, or as much of a larger one as shows that it is larger."""
        if (httpx.URL(self.url).port or 0) > _LARGEST_PORT:
            raise httpx.InvalidURL("the port is too large")
        data = bytearray()
        with (
            httpx.Client(
                transport=PublicTransport(self.own),
                trust_env=False,
                follow_redirects=True,
                timeout=_SECONDS,
                headers={"Accept-Encoding": "identity"},  # a few bytes cannot become gigabytes
            ) as client,
            client.stream("GET", self.url) as response,
        ):
            response.raise_for_status()
            for piece in response.iter_raw():
                data += piece
                if len(data) > self.most:
                    break
        return bytes(data)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"the answer is {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException):
        return f"it did not come within {_SECONDS:g} s"
    if isinstance(error, httpx.TooManyRedirects):
        return "it is redirected too often"
    if isinstance(error, httpx.UnsupportedProtocol):
        return "it is redirected to an address that is not http or https"
    if isinstance(error.__cause__, PrivateAddressError):
        return "it leads to a private address"
    if isinstance(error, httpx.InvalidURL | OverflowError) or isinstance(
        error.__cause__ or error, ValueError
    ):
        return "its host name or port is not valid"
    if isinstance(error.__cause__, socket.gaierror):
        return "its host is not known"
    return "its server does not answer"
