"""Addresses for everything in a cluster.

On loopback nothing needs privileges: every address of 127.0.0.0/8 is this machine's own on Linux,
without setting anything up. Clusters that run side by side must not share any: each takes a *slot*, a
number that is held by an abstract socket, so that the kernel gives it back however the process ends.

    slot n: Services 127.(96+n).0.0/16, nodes and pods 127.(160+n).0.0/16, a node's pods in a /24 there

In a network namespace of its own (`netns`) a cluster has private ranges, always the same ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = 64
MOST_NODES = 250
"""A node's number is one octet."""
_SERVICES = 96
_PODS = 160


class NoAddresses(Exception):
    """No range of addresses is free; the text says what to do."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """The addresses of one cluster; `name` tells them again after a restart."""

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

    @classmethod
    def private(cls) -> Self:
        """Return the ranges of a network namespace."""
        return cls(name="private", services="10.201.0.0/16", prefix="10.200")

    @property
    def server(self) -> str:
        """Where the API server is, in a network namespace."""
        return f"{self.prefix}.0.254"

    def node(self, number: int) -> str:
        """Return the address of a node, counted from 1."""
        return f"{self.prefix}.0.{number}"

    def pods(self, number: int) -> str:
        """Return the network of a node's pods; the node's number is counted from 1."""
        return f"{self.prefix}.{number}.0/24"


@contextlib.contextmanager
def reserved(*, preferred: str = "") -> Iterator[Ranges]:
    """Hold loopback ranges: those of that name if they are free, else any. Raises NoAddresses."""
    slots = sorted(range(SLOTS), key=lambda slot: Ranges.loopback(slot).name != preferred)
    for slot in slots:
        holder = _hold(slot)
        if holder is not None:
            with holder:
                yield Ranges.loopback(slot)
            return
    raise NoAddresses(f"all {SLOTS} address ranges are taken by other dev clusters; stop one")


def _hold(slot: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0elasti-dev-slot-{slot}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return holder
