"""Loopback addresses for everything in a cluster, so that nothing needs privileges.

Every address of 127.0.0.0/8 is this machine's own on Linux, without setting anything up. Clusters
that run side by side must not share any: each takes a *slot*, a number that is held by an abstract
socket, so that the kernel gives it back however the process ends.

    slot n: Services 127.(96+n).0.0/16, nodes and pods 127.(160+n).0.0/16, a node's pods in a /24 there
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOTS = 64
_SERVICES = 96
_PODS = 160


class NoAddresses(Exception):
    """No range of addresses is free; the text says what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ranges:
    """The addresses of one cluster."""

    slot: int

    @property
    def services(self) -> str:
        """The network of cluster addresses."""
        return f"127.{_SERVICES + self.slot}.0.0/16"

    def node(self, number: int) -> str:
        """Return the address of a node, counted from 1."""
        return f"127.{_PODS + self.slot}.0.{number}"

    def pods(self, number: int) -> str:
        """Return the network of a node's pods; the node's number is counted from 1."""
        return f"127.{_PODS + self.slot}.{number}.0/24"


MOST_NODES = 250
"""A node's number is one octet."""


@contextlib.contextmanager
def reserved(*, slot: int | None = None) -> Iterator[Ranges]:
    """Hold a slot, that one or the first that is free. Raises NoAddresses."""
    for number in range(SLOTS) if slot is None else (slot,):
        holder = _hold(number)
        if holder is not None:
            with holder:
                yield Ranges(number)
            return
    if slot is None:
        raise NoAddresses(f"all {SLOTS} address ranges are taken by other dev clusters; stop one")
    taken = Ranges(slot).services
    raise NoAddresses(
        f"the addresses of this data directory ({taken}) are taken by another dev cluster;"
        " stop that one, or use another data directory"
    )


def _hold(number: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        holder.bind(f"\0elasti-dev-slot-{number}")
    except OSError as error:
        holder.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return holder
