"""Which addresses this service may call on a user's behalf. A rule about numbers: nothing here resolves a name."""

from __future__ import annotations

import ipaddress

#: NAT64: the last four bytes are an IPv4 address, which is what is reached in the end.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Global by the registries of RFC 6890 in some Python releases, and yet nobody's server.
_NEVER = (ipaddress.ip_network("192.88.99.0/24"), ipaddress.ip_network("64:ff9b:1::/48"))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_public(address: str | Address) -> bool:
    """True for an address of the open internet; False for private, loopback, link-local (with the metadata services of
    clouds), shared, multicast, reserved and unspecified ones, and for text that is no address.

    An IPv4 address inside an IPv6 one (mapped, compatible, 6to4, Teredo, NAT64) is judged as well.
    """
    if isinstance(address, str):
        try:
            # A zone (`fe80::1%eth0`) says which interface, not which address.
            address = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
    if any(address.version == network.version and address in network for network in _NEVER):
        return False
    inner = _inside(address)
    if inner is not None:
        return is_public(inner)
    return address.is_global and not address.is_multicast and not address.is_reserved


def _inside(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a packet to `address` reaches in the end, if it is that kind of IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64 or int(address) >> 32 == 0:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None
