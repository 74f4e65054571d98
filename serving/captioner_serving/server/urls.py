"""Photos by URL, downloaded in the decoding process (--allow-urls).

URLs are untrusted, so only public addresses are allowed, for redirects too.
"""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from captioner.certificates import CertificatesError
from captioner.errors import ImageNotFoundError, ImageTooLargeError
from captioner.shared.paths import is_web_address
from captioner_serving.networks import PrivateAddressError, PublicTransport, stream_url

_SECONDS = 15.0  # for a step, such as connecting; the decoding pool limits the total time
_LARGEST_PORT = 65_535


@dataclass(frozen=True)
class WebPhoto:
    """A photo at an http or https URL."""

    url: str
    most: int  # bytes
    trusted_host: str | None = None  # its addresses may be private; for tests

    @property
    def name(self) -> str:
        """The URL, shortened for messages."""
        return self.url[:200]

    def read(self) -> bytes:
        """Download the photo.

        Raises ImageNotFoundError, or ImageTooLargeError if it has more than `most` bytes.
        """
        if not is_web_address(self.url):
            raise ImageNotFoundError(f"{self.name!r} is not an http or https URL")
        data = bytearray()
        try:
            if (httpx.URL(self.url).port or 0) > _LARGEST_PORT:
                raise httpx.InvalidURL("the port is too large")
            transport = PublicTransport(self.trusted_host)
            with stream_url(self.url, transport, timeout=_SECONDS) as pieces:
                for piece in pieces:
                    data += piece
                    if len(data) > self.most:
                        detail = f"{self.name} is larger than the limit of {self.most / 1e6:g} MB"
                        raise ImageTooLargeError(detail)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OverflowError) as error:
            reason = _reason(error)
            raise ImageNotFoundError(f"{self.name} cannot be downloaded: {reason}") from error
        return bytes(data)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}"
    if isinstance(error, httpx.TimeoutException):
        return f"no answer within {_SECONDS:g} s"
    if isinstance(error, CertificatesError):
        return "this server cannot load the certificates for https"
    if isinstance(error.__cause__, PrivateAddressError):
        return "it leads to a private address"
    return "the URL or its certificate is not valid, or its host does not answer"
