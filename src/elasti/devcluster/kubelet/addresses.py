"""Addresses of pods: each pod its own, and a freed one used again as late as possible."""

from __future__ import annotations

import collections
import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class NoAddressLeft(Exception):
    """Every address of the range is in use."""


class AddressPool:
    """The range of one node.

    Addresses never used come first, then those that have been free the longest: somebody may still
    have the old owner's address in mind. Those that end in 0 or 255 are left out, and `reserved`.
    """

    def __init__(self, network: str, *, reserved: Iterable[str] = ()) -> None:
        self._network = ipaddress.ip_network(network)
        self._fresh: Iterator[str] = self._all()
        self._used: set[str] = set(reserved)
        self._freed: collections.OrderedDict[str, None] = collections.OrderedDict()

    def __repr__(self) -> str:
        return f"<AddressPool {self._network}: {len(self._used)} in use>"

    def __contains__(self, address: str) -> bool:
        return ipaddress.ip_address(address) in self._network

    def _all(self) -> Iterator[str]:
        for address in self._network.hosts():
            if address.packed[-1] not in (0, 255):
                yield str(address)

    def take(self) -> str:
        """Return an address that nobody has. Raises NoAddressLeft."""
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
