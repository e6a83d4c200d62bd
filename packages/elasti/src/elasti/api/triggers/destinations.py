"""The addresses that triggers may not ask, unless the installation allows them. Pure.

The author of a trigger names a Prometheus, and may write the EndpointSlices that list pods. Without this
list the operator could be sent to its own host, to a cloud's metadata server or to the API server, from
a place in the network that the author does not have.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import urllib.parse
from typing import TypeAlias

from elasti.api.parsing import parse_list

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

ALLOWED = "ELASTI_TRIGGER_ALLOWED_ADDRESSES"
DENIED = (
    "its address is loopback, link-local, a metadata server's or the API server's, which triggers may not"
    f" ask; if they should, list it in the operator's {ALLOWED}"
)

# Metadata servers of clouds that are not link-local: Alibaba, Azure, Oracle, AWS.
_METADATA = frozenset(("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"))
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SERVER_NAMES = frozenset(("kubernetes", "kubernetes.default", "kubernetes.default.svc"))
_PORTS = {"http": 80, "https": 443}


def parse_networks(text: str) -> tuple[Network, ...]:
    """Read addresses and networks with commas. Raises ValueError."""
    try:
        return tuple(ipaddress.ip_network(part) for part in parse_list(text))
    except ValueError as error:
        raise ValueError(f"{error}; write addresses like 127.0.0.1 or 169.254.0.0/16") from None


@dataclasses.dataclass(frozen=True, slots=True)
class Destinations:
    """Decides which addresses triggers may ask."""

    allowed: tuple[Network, ...] = ()
    server: tuple[str, int] = ("", 0)
    """The host and port of the API server."""
    local: bool = False
    """The API server is on loopback: then so is the whole cluster, and loopback is allowed."""

    @classmethod
    def of(cls, server: str, allowed: tuple[Network, ...] = ()) -> Destinations:
        """Return those of an installation, by the API server's URL."""
        url = urllib.parse.urlsplit(server)
        host = url.hostname or ""
        address = _address(host)
        local = host == "localhost" or (address is not None and address.is_loopback)
        return cls(allowed, (host, url.port or _PORTS.get(url.scheme, 0)), local)

    def permits_name(self, host: str, port: int) -> bool:
        """Whether a name may be asked, as far as that is known before it is resolved."""
        name = host.lower().rstrip(".").removesuffix(".cluster.local")
        return name not in _SERVER_NAMES and (name, port) != self.server

    def permits(self, host: str, port: int) -> bool:
        """Whether an address may be connected to."""
        address = _address(host)
        if address is None:
            return False
        if any(address in network for network in self.allowed):
            return True
        if (str(address), port) == self.server or str(address) in _METADATA:
            return False
        if address.is_loopback:
            return self.local
        return not (address.is_link_local or address.is_unspecified or address.is_multicast)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        # An IPv4 address written as an IPv6 one leads to the same place.
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address
