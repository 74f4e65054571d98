"""Addresses of clients, proxies and names: told apart, compared, counted."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.types import Scope

__all__ = ["client_of", "parse_address", "whole_client"]


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address, in brackets or not; an IPv4 one inside IPv6 is IPv4. None if it is none."""
    try:
        address = ip_address(text.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        return address.ipv4_mapped
    return address


def whole_client(host: str) -> str:
    """Name the client behind an address: with IPv6 everybody has a /64, and 2^64 addresses."""
    address = parse_address(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return host if address is None else str(address)


def client_of(scope: Scope) -> str:
    """Name the client of a request."""
    return whole_client((scope.get("client") or ("",))[0])
