"""Addresses of everything in a cluster: the ranges of a cluster, the pool of a node.

On loopback nothing needs privileges: every address of 127.0.0.0/8 is this machine's own on Linux,
without setting anything up. Clusters that run side by side must not share any: each takes a *slot*, a
number that is held by an abstract socket, so that the kernel gives it back however the process ends.

    slot n: Services 127.(96+n).0.0/16, nodes and pods 127.(160+n).0.0/16, a node's pods in a /24 there

Each pod has an address of its own from its node's pool, which uses a freed one again as late as possible.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import ipaddress
import socket
from collections.abc import Iterable, Iterator
from typing import Self

SLOTS = 64
MOST_NODES = 250
"""A node's number is one octet."""
_SERVICES = 96
_PODS = 160


class NoAddresses(Exception):
    """No range of addresses is free; the text says what to do."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AddressRanges:
    """The addresses of one cluster; `name` identifies them after a restart."""

    name: str
    services: str
    """The network of cluster addresses."""
    prefix: str
    """The first two octets of nodes and pods."""

    @classmethod
    def loopback(cls, slot: int) -> Self:
        """Return the ranges of a slot."""
        return cls(
            name=f"loopback {slot}",
            services=f"127.{_SERVICES + slot}.0.0/16",
            prefix=f"127.{_PODS + slot}",
        )

    def node(self, number: int) -> str:
        """Return the address of a node, counted from 1."""
        return f"{self.prefix}.0.{number}"

    def pods(self, number: int) -> str:
        """Return the network of a node's pods; the node's number is counted from 1."""
        return f"{self.prefix}.{number}.0/24"


@contextlib.contextmanager
def reserved(*, preferred: str = "") -> Iterator[AddressRanges]:
    """Hold loopback ranges: those of that name if they are free, else any. Raises NoAddresses."""
    slots = sorted(range(SLOTS), key=lambda slot: AddressRanges.loopback(slot).name != preferred)
    for slot in slots:
        holder = _hold(slot)
        if holder is not None:
            with holder:
                yield AddressRanges.loopback(slot)
            return
    raise NoAddresses(f"all {SLOTS} address ranges are taken by other dev clusters; stop one")


def _hold(slot: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0devkube-slot-{slot}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return holder


class NoAddressLeft(Exception):
    """Every address of the range is in use."""


class AddressPool:
    """The range of one node.

    Addresses never used come first, then those that have been free the longest: clients may still
    use the old owner's address. Those that end in 0 or 255 are left out, and `reserved`.
    """

    def __init__(self, network: str, *, reserved: Iterable[str] = ()) -> None:
        self._network = ipaddress.ip_network(network)
        self._fresh: Iterator[str] = self._all()
        self._used: set[str] = set(reserved)
        self._freed: collections.OrderedDict[str, None] = collections.OrderedDict()

    def __contains__(self, address: str) -> bool:
        return ipaddress.ip_address(address) in self._network

    def _all(self) -> Iterator[str]:
        for address in self._network.hosts():
            if address.packed[-1] not in (0, 255):
                yield str(address)

    def take(self) -> str:
        """Return an address that is free. Raises NoAddressLeft."""
        for address in self._fresh:
            if address not in self._used and address not in self._freed:
                self._used.add(address)
                return address
        if not self._freed:
            raise NoAddressLeft(f"every address of {self._network} is in use")
        address, _ = self._freed.popitem(last=False)
        self._used.add(address)
        return address

    def free(self, address: str) -> None:
        """Give an address back."""
        if address in self._used:
            self._used.remove(address)
            self._freed[address] = None

    def remember(self, address: str) -> None:
        """Treat an address as just freed: a pod had it under an earlier kubelet."""
        if address and address in self and address not in self._used:
            self._freed.pop(address, None)
            self._freed[address] = None
