"""HTTP that is not led into the network that this machine stands in.

A link, or the server behind it, may name this machine or a neighbour of it, to which whoever wrote
the link has no access. So every request, redirected or not, goes to an address that was looked at:
a name that is looked up twice may have another address the second time (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket

import httpx

__all__ = ["PrivateAddressError", "PublicTransport", "Transport", "check_address"]

# Without their last 32 bits, which are an IPv4 address: ::/96, ::ffff:0:0:0/96 (RFC 2765) and
# 64:ff9b::/96 (RFC 6052).
_TRANSLATED = (0, 0xFFFF << 16, 0x64FF9B << 64)
_LOCALLY = ipaddress.IPv6Network("64:ff9b:1::/48")  # to this network's own IPv4, RFC 8215

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PrivateAddressError(ValueError):
    """An address is private, or written so that it may be."""


class Transport(httpx.HTTPTransport):
    """Connects to any address, and reads no redirect but its head."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Close a redirect before httpx reads what stands in it."""
        response = super().handle_request(request)
        if response.has_redirect_location:
            response.close()
            return _without_body(response)
        return response


class PublicTransport(Transport):
    """Connects to public addresses only, and to the host `own` wherever that is."""

    def __init__(self, own: str | None = None) -> None:
        # No connection is used twice: it was opened for the host of one request.
        super().__init__(limits=httpx.Limits(max_keepalive_connections=0))
        self._own = own

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Look the host up, and connect to what was looked at."""
        host, request.extensions = request.url.host, dict(request.extensions)
        # The certificate and the server are asked for by name all the same.
        request.extensions["sni_hostname"] = host
        url = request.url
        problem: httpx.TransportError = httpx.ConnectError(f"{host} has no address")
        for address in _public_addresses(request, own=self._own):
            request.url = url.copy_with(host=address)
            try:
                return super().handle_request(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem = error  # the next address may answer
            finally:
                request.url = url  # redirects are relative to it
        raise problem


def _without_body(response: httpx.Response) -> httpx.Response:
    """Give a redirect without what stands in it: httpx would read and unpack all of that."""
    headers = [pair for pair in response.headers.raw if pair[0].lower() != b"content-encoding"]
    return httpx.Response(response.status_code, headers=headers)


def _public_addresses(request: httpx.Request, *, own: str | None) -> list[str]:
    """Look the host of a request up; any address is good of the host `own`.

    Raises httpx.ConnectError: there is none, or one is private.
    """
    host = request.url.host
    try:
        if host != own:
            check_address(host, host)
        infos = socket.getaddrinfo(host, request.url.port, type=socket.SOCK_STREAM)
        addresses = [str(info[4][0]) for info in infos]
        if host != own:
            for address in addresses:
                check_address(host, address)
    except (OSError, ValueError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise httpx.ConnectError(str(reason), request=request) from error
    return list(dict.fromkeys(addresses))


def check_address(host: str, text: str) -> None:
    """Look at an address of a host, or at the host where it may be one itself.

    Raises PrivateAddressError: it is private, or not written in full.
    """
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        # The system takes 2130706433, 127.1 and 0177.0.0.1 for 127.0.0.1.
        if text.replace(".", "").isdigit():
            raise PrivateAddressError(f"{text} is not an IPv4 address in full") from None
        return  # a name
    if not _is_public(address):
        raise PrivateAddressError(
            f"it leads to {host}, which has a private address, {address}; if you trust the link, "
            "add --allow-private"
        )


def _is_public(address: _Address) -> bool:
    if address.version == 6:
        if address.is_site_local or address in _LOCALLY:  # Python 3.11 takes the latter for global
            return False
        address = _inside(address) or address
    return address.is_global and not address.is_multicast


def _inside(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to; ::ffff:127.0.0.1 is 127.0.0.1."""
    high = int(address) >> 32
    if high in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
