"""HTTP clients that are not led into the network that this machine stands in.

A link, or the server behind it, may name this machine or a neighbour of it, to which whoever wrote
the link has no access. So every address is looked at where it is about to be connected to: a name
that is looked up twice may have another address the second time (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import aiohttp
from aiohttp.abc import ResolveResult

__all__ = ["guarded_client"]

_TRANSLATED = 0x64FF9B << 64  # 64:ff9b::/96 without its last 32 bits, RFC 6052


async def guarded_client(own: str | None = None, **options: Any) -> aiohttp.ClientSession:
    """Open a client that connects to public addresses only; it follows links to http and https.

    Args:
        own: a host whose addresses may be private all the same.
        options: of the session.

    """
    return aiohttp.ClientSession(connector=_Connector(own), **options)


class _Resolver(aiohttp.ThreadedResolver):
    """Looks names up; what it answers is what is connected to."""

    def __init__(self, own: str | None) -> None:
        super().__init__()
        self._own = own

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Look a name up.

        Raises:
            ValueError: it has a private address.

        """
        found = await super().resolve(host, port, family)
        if host != self._own:
            for each in found:
                _check(host, each["host"])
        return found


class _Connector(aiohttp.TCPConnector):
    """Connects, by the resolver above or, where an address stands in the link, without any."""

    def __init__(self, own: str | None) -> None:
        super().__init__(resolver=_Resolver(own))
        self._own = own

    async def connect(self, req: aiohttp.ClientRequest, *rest: Any, **more: Any) -> Any:
        """Connect to the host of a request.

        Raises:
            ValueError: it is a private address.

        """
        host = req.url.host or ""
        if host != self._own:
            _check(host, host)
        return await super().connect(req, *rest, **more)


def _check(host: str, text: str) -> None:
    try:
        address = ipaddress.ip_address(text.split("%")[0])
    except ValueError:
        # The system takes 2130706433, 127.1 and 0177.0.0.1 for 127.0.0.1, and not every resolver
        # is asked about what looks like an address.
        if text.replace(".", "").isdigit():
            raise ValueError(f"{text} is not an IPv4 address in full") from None
        return  # a name, which is for the resolver
    if not _is_public(address):
        raise ValueError(
            f"it leads to {host}, which has a private address, {address}; if you trust the link, "
            "add --allow-private"
        )


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if address.version == 6:
        if address.is_site_local:
            return False
        address = _inside(address) or address
    return address.is_global and not address.is_multicast


def _inside(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to; ::ffff:127.0.0.1 is 127.0.0.1."""
    high = int(address) >> 32
    if high in (0, _TRANSLATED):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour
