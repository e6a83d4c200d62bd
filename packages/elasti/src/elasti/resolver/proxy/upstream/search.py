"""A connection's search for a pod: at once, after a wait, and again if a pod refused.

A pod that does not accept is reported, and the search continues at another pod or at the head of the queue.
Nothing was sent, so nothing can be sent twice. HTTP/1, h2 and TCP connections search in the same way, and differ in
what they do with the pod.
"""

from __future__ import annotations

import abc
import asyncio
from typing import ClassVar

from elasti.resolver.proxy.port import Port
from elasti.resolver.proxy.quota import PAGE, QuotaShare
from elasti.resolver.proxy.statistics import CLIENT_GONE, LEFT
from elasti.resolver.proxy.upstream.interface import Refusal, UpstreamAddress
from elasti.resolver.proxy.upstream.pod_connection import PodConnection

_MAX_TRIES = 4


class UpstreamSearch(abc.ABC):
    """The search of one connection, or of one request of it."""

    __slots__ = (
        "_opening", "_opening_tick", "_pages", "_tries", "_waiting", "handler", "held_for", "held_since",
    )  # fmt: skip

    # Whether the connection to the pod must be new.
    fresh: ClassVar[bool] = True
    is_http: ClassVar[bool] = True
    _transport: asyncio.Transport | None

    def __init__(self, handler: Port) -> None:
        self.handler = handler
        # When it began to wait for a pod, and how long it took to find one.
        self.held_since: float | None = None
        self.held_for = 0.0
        self._waiting = False
        self._opening: UpstreamAddress | None = None
        self._opening_tick = 0
        self._tries = 0
        # Memory quota taken, in pages.
        self._pages = 0

    @property
    def pod_share(self) -> QuotaShare:
        """The quota for connections to pods."""
        return self.handler.pods

    @abc.abstractmethod
    def connected(self, connection: PodConnection) -> None:
        """Use a connection to a pod; overriders call `found` first."""

    @abc.abstractmethod
    def refuse(self, refusal: Refusal) -> None:
        """No pod will be found: refuse the client."""

    @abc.abstractmethod
    def kept(self) -> int:
        """Return how many of the client's bytes are kept."""

    def has_memory_for(self, kept: int) -> bool:
        """Adjust the memory quota to `kept` bytes. Returns False if there is not enough."""
        self._pages = self.handler.memory.resize(self._pages, kept)
        return self._pages * PAGE >= kept

    def search(self) -> None:
        """Go to a serving pod, or wait for one."""
        address = self.handler.upstream.pick()
        if address is None:
            self._wait(first=False)
        else:
            self._go(address)

    def search_again(self) -> None:
        """Try another pod, or wait at the head of the queue. Nothing was sent, or it may be sent again."""
        self._tries += 1
        address = self.handler.upstream.pick() if self._tries < _MAX_TRIES else None
        if address is None:
            self._wait(first=True)
        else:
            self._go(address)

    def stop_search(self) -> None:
        """Leave the upstream's queue and the pool's."""
        if self.leave_queue():
            self._hold_ended(LEFT, CLIENT_GONE)
        if self._opening is not None:
            address, self._opening = self._opening, None
            self.handler.pool.cancel(address, self, fresh=self.fresh)
        if self._pages:
            self.has_memory_for(0)

    def leave_queue(self) -> bool:
        """Stop waiting. Returns whether it waited."""
        if not self._waiting:
            return False
        self._ends_waiting()
        self.handler.upstream.leave(self)
        return True

    def found(self) -> None:
        """End the search for now."""
        self._opening = None
        self._measure()
        if self._pages:
            self.has_memory_for(self.kept_behind())

    def kept_behind(self) -> int:
        """Return how many kept bytes the pod does not get now."""
        return 0

    def gave_up_search(self, tick: int) -> bool:
        """Refuse if no connection to a pod was possible for long, because descriptors have run out."""
        if self._opening is None or tick - self._opening_tick <= self.handler.limits.opening:
            return False
        self.stop_search()
        self.refuse(Refusal.BUSY)
        return True

    @property
    def is_served(self) -> bool:
        """Whether a pod has the connection, or its running request."""
        return False

    @property
    def has_memory(self) -> bool:
        """Whether it has taken memory."""
        return self._pages > 0

    def shed(self) -> bool:
        """End the connection to make room for others, unless a pod serves it; returns whether it did."""
        transport = self._transport
        if transport is None or transport.is_closing() or self.is_served:
            return False
        reads = not transport.get_write_buffer_size()
        if reads:
            self.refuse(Refusal.BUSY)
        self.leave_queue()
        if self._pages:
            self.has_memory_for(0)
        # Its descriptor is needed: a client that does not read is not waited for.
        (transport.close if reads else transport.abort)()
        return True

    # HeldConnection

    def client(self) -> str:
        """Return the client's address."""
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return str(peer[0]) if peer else ""

    def admit(self, address: UpstreamAddress) -> None:
        """Go to this pod, which serves."""
        if self._waiting:
            self._ends_waiting()
            self._go(address)

    def give_up(self, refusal: Refusal) -> None:
        """Refuse: no pod will serve this connection."""
        if self._waiting:
            self._ends_waiting()
            self.refuse(refusal)

    # the pool's answer

    def connect_failed(self, address: UpstreamAddress) -> None:
        """The pod did not accept a connection."""
        self._opening = None
        self.handler.upstream.refused(address)
        self.search_again()

    def _go(self, address: UpstreamAddress) -> None:
        self._opening = address
        self._opening_tick = self.handler.sweeper.tick
        self.handler.pool.open(address, self, fresh=self.fresh)

    def _wait(self, *, first: bool) -> None:
        if self.held_since is None:
            self.held_since = self.handler.now()
        refusal: Refusal | None = Refusal.OVERFLOW
        # A connection takes memory for its objects even if no bytes are kept.
        if self.has_memory_for(max(self.kept(), 1)):
            refusal = self.handler.upstream.wait(self, first=first)
        if refusal is None:
            self._waiting = True
            self.handler.held[self] = None
            self.handler.statistics.held += 1
        else:
            self.refuse(refusal)

    def _ends_waiting(self) -> None:
        self._waiting = False
        self._measure()
        del self.handler.held[self]
        self.handler.statistics.held -= 1

    def _trace_parent(self) -> bytes:
        """Return the client's traceparent."""
        return b""

    def _hold_ended(self, how: int | str, outcome: str) -> None:
        """Count it if it was held."""
        if (since := self.held_since) is not None:
            parent, counted = self._trace_parent(), self.handler.statistics
            counted.hold_ended(how, self.held_for, outcome, since=since, parent=parent)

    def _measure(self) -> None:
        if self.held_since is not None:
            self.held_for = self.handler.now() - self.held_since
