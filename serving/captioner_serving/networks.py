"""Addresses of clients, and HTTP requests that cannot reach private networks (SSRF protection).

A URL or a redirect may lead to this machine or its network. So the host is resolved once, its
addresses are checked, and the request connects to a checked address. Resolving twice could give
another address the second time (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from captioner.certificates import tls_context

# IPv6 prefixes before an IPv4 address in the last 32 bits: ::/96, ::ffff:0:0:0/96 (RFC 2765) and
# 64:ff9b::/96 (RFC 6052).
_TRANSLATED = (0, 0xFFFF << 16, 0x64FF9B << 64)
_LOCALLY = ipaddress.IPv6Network("64:ff9b:1::/48")  # IPv4 addresses of a local network, RFC 8215

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PrivateAddressError(ValueError):
    """An address is private or ambiguous."""


class Transport(httpx.HTTPTransport):
    """Connects to any address; discards the bodies of redirects."""

    def __init__(self, **options: Any) -> None:
        super().__init__(verify=tls_context(), **options)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Close a redirect without reading its body, which httpx would unpack."""
        response = super().handle_request(request)
        if not response.has_redirect_location:
            return response
        response.close()
        headers = [pair for pair in response.headers.raw if pair[0].lower() != b"content-encoding"]
        return httpx.Response(response.status_code, headers=headers)


class PublicTransport(Transport):
    """Connects to public addresses, and to any address of `trusted_host`."""

    def __init__(self, trusted_host: str | None = None) -> None:
        # No keep-alive: a connection must not be reused for another host.
        super().__init__(limits=httpx.Limits(max_keepalive_connections=0))
        self._trusted_host = trusted_host

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Resolve the host, and connect to a checked address."""
        host, request.extensions = request.url.host, dict(request.extensions)
        # TLS still verifies the name, not the address.
        request.extensions["sni_hostname"] = host
        url = request.url
        problem: httpx.TransportError = httpx.ConnectError(f"{host} has no address")
        for address in _public_addresses(request, trusted_host=self._trusted_host):
            request.url = url.copy_with(host=address)
            try:
                return super().handle_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem = error  # try the next address
            finally:
                request.url = url  # redirects are relative to the original URL
        raise problem


@contextmanager
def stream_url(url: str, transport: Transport, *, timeout: float) -> Iterator[Iterator[bytes]]:
    """Request an http or https URL, follow redirects, and yield the body in pieces.

    `timeout` is in seconds for each step, such as connecting.

    Raises httpx.HTTPError, httpx.InvalidURL: the request failed.
    """
    with (
        httpx.Client(
            transport=transport,
            trust_env=False,
            follow_redirects=True,
            timeout=timeout,
            # Compressed bodies are not unpacked: a few bytes could become gigabytes.
            headers={"Accept-Encoding": "identity"},
        ) as client,
        client.stream("GET", url) as response,
    ):
        response.raise_for_status()
        yield response.iter_raw()


def _public_addresses(request: httpx.Request, *, trusted_host: str | None) -> list[str]:
    """Resolve the host of a request, and check its addresses unless it is `trusted_host`.

    Raises httpx.ConnectError: the host has no address, or a private one.
    """
    host = request.url.host
    try:
        if host != trusted_host:
            check_address(host, host)
        infos = socket.getaddrinfo(host, request.url.port, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]) for info in infos]
        if host != trusted_host:
            for address in addresses:
                check_address(host, address)
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise httpx.ConnectError(str(reason)) from error
    return list(dict.fromkeys(addresses))


def check_address(host: str, text: str) -> None:
    """Check an address of a host, or the host itself if it is an address.

    Raises PrivateAddressError: the address is private, or not written in full.
    """
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        # The system reads 2130706433, 127.1 and 0177.0.0.1 as 127.0.0.1.
        if text.replace(".", "").isdigit():
            raise PrivateAddressError(f"{text} is not a complete IPv4 address") from None
        return  # a host name, not an address
    if not _is_public(address):
        raise PrivateAddressError(
            f"it leads to {host}, which has the private address {address}; if you trust the URL, "
            "add --allow-private"
        )


def _is_public(address: _Address) -> bool:
    if address.version == 6:
        if address.is_site_local or address in _LOCALLY:  # Python 3.11 calls the latter global
            return False
        address = _embedded(address) or address
    return address.is_global and not address.is_multicast


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address in an IPv6 address, such as 127.0.0.1 in ::ffff:127.0.0.1."""
    high = int(address) >> 32
    if high in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def parse_address(text: str) -> _Address | None:
    """Parse an IP address, with or without brackets; IPv4-mapped ones become IPv4."""
    try:
        address = ipaddress.ip_address(text.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def client_of(scope: Mapping[str, Any]) -> str:
    """Return the key of a request's client: its address, or its /64 network for IPv6."""
    host, *_ = scope.get("client") or ("",)
    address = parse_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address or host)
