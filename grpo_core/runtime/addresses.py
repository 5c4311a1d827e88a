"""Which network addresses the public internet does not have. The standard library alone: verify.pyz holds this too."""

import ipaddress
from typing import Any

_NON_PUBLIC = [
    (ipaddress.ip_network(network), kind)
    for kind, networks in {
        "of this machine": "0.0.0.0/8 127.0.0.0/8 ::1/128",
        "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
        "shared by a carrier (CGNAT)": "100.64.0.0/10",
        "link-local (a cloud's metadata)": "169.254.0.0/16 fe80::/10",
        "a cloud's own service": "168.63.129.16/32",
        "multicast": "224.0.0.0/4",
        "reserved": "192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 "
        "2001::/23 2001:db8::/32 2002::/16 3fff::/20",
    }.items()
    for network in networks.split()
]
NEAR = frozenset({"of this machine", "private", "shared by a carrier (CGNAT)"})
"""Kinds under which an organisation's own server may be."""
_PUBLIC_6 = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def non_public(address: str) -> str | None:
    """Which kind of address it is that the public internet does not have; None for one that it has."""
    ip: Any = ipaddress.ip_address(address.partition("%")[0])
    if ip.version == 6:
        if ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        elif ip in _NAT64:
            ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    for network, kind in _NON_PUBLIC:
        if ip.version == network.version and ip in network:
            return kind
    return "reserved" if ip.version == 6 and ip not in _PUBLIC_6 else None
