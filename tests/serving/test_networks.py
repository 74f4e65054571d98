"""The address policy: no spelling of a private address gets through, and every public one does."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioner_serving.networks import PrivateAddressError, check_address
from tests.properties import FEW

# IANA's registry of special-purpose addresses, and multicast.
PRIVATE = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "224.0.0.0/4", "240.0.0.0/4",
]  # fmt: skip
PUBLIC = ["1.0.0.0/8", "8.8.0.0/16", "93.184.0.0/16", "172.32.0.0/11", "198.20.0.0/14"]
PRIVATE_6 = [
    "::1/128", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "2001:db8::/32", "64:ff9b:1::/48",
]  # fmt: skip
PUBLIC_6 = ["2606:4700::/32", "2a00:1450::/32"]


def inside(networks: list[str]) -> st.SearchStrategy[str]:
    """Addresses of these networks, their first and last ones among them."""
    parsed = [ipaddress.ip_network(network) for network in networks]
    edges = [str(network[at]) for network in parsed for at in (0, -1)]
    of = [
        st.integers(0, network.num_addresses - 1).map(lambda at, of=network: str(of[at]))
        for network in parsed
    ]
    return st.sampled_from(edges) | st.one_of(of)


def spellings(address: str) -> list[str]:
    """An IPv4 address, alone and in the IPv6 addresses that lead to it."""
    number = int(ipaddress.IPv4Address(address))
    high, low = f"{number >> 16:x}", f"{number & 0xFFFF:x}"
    return [
        address, f"::{address}", f"::ffff:{address}", f"::ffff:{high}:{low}", f"64:ff9b::{address}",
        f"2002:{high}:{low}::", f"2002:{high}:{low}::1", f"::ffff:0:{address}",
    ]  # fmt: skip


@FEW
@given(address=inside(PRIVATE), other=inside(PRIVATE_6), zone=st.sampled_from(["", "%eth0"]))
def test_a_private_address_is_refused_in_every_spelling(
    address: str, other: str, zone: str
) -> None:
    number = int(ipaddress.IPv4Address(address))
    first, rest = number >> 24, number & 0xFFFFFF
    # The system's resolver takes 2130706433, 127.1 and 0177.0.0.1 for 127.0.0.1.
    short = (f"{number}", f"{first}.{rest}", f"0{first:o}.0.0.1")
    for spelling in (*spellings(address), *short, other + zone):
        with pytest.raises(PrivateAddressError):
            check_address("a.example", spelling)


@FEW
@given(address=inside(PUBLIC), other=inside(PUBLIC_6), zone=st.sampled_from(["", "%eth0"]))
def test_a_public_address_is_allowed_in_every_spelling(address: str, other: str, zone: str) -> None:
    for spelling in (*spellings(address), other + zone):
        check_address("a.example", spelling)
