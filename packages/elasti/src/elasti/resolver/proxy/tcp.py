"""A connection on a port that is not HTTP, or not known to be: held as bytes, then tunnelled.

Servers may speak first, so the connection itself asks for a pod: where one answers, at once; where it
would have to be woken, after the first byte or a grace of a second, since health checks connect and
disconnect. TLS clients speak first, so there only a byte wakes. What the client sends meanwhile is kept up
to a bound; then TCP pushes back.

On a port whose protocol is not declared, a first line that is an HTTP request's makes the connection an HTTP
one. Nothing else in use looks like `METHOD target HTTP/1.1`.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, ClassVar, cast

from elasti.resolver.proxy.http1.connection import ClientConnection
from elasti.resolver.proxy.statistics import REFUSED_TCP, SERVED_TCP
from elasti.resolver.proxy.transport import BufferedClientProtocol, shorten_keepalive, tunnel
from elasti.resolver.proxy.upstream.interface import PortProtocol, Refusal, UpstreamAddress
from elasti.resolver.proxy.upstream.search import UpstreamSearch
from kubeloop.aio.relay import is_reset, reset

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.resolver.proxy.port_handler import PortHandler
    from elasti.resolver.proxy.upstream.pod_connection import PodConnection


_REQUEST_LINE = re.compile(rb"(?:[A-Z]{3,20} [\x21-\x7e]++ HTTP/1\.[01]|PRI \* HTTP/2\.0)\r\n")
# What may become one: as long as no line has ended and it is not too long for one.
_UNFINISHED_LINE = re.compile(rb"[A-Z]{1,20}+(?: [\x21-\x7e]{0,8192}+(?: [HTP/12.0]{0,8}+\r?)?)?\Z")
# The first record of a TLS connection.
_HANDSHAKE = b"\x16\x03"


class TcpConnection(UpstreamSearch, BufferedClientProtocol):
    """One client's connection until it is tunnelled."""

    __slots__ = (
        "_buffer", "_counted", "_eof", "_grace", "_paused", "_searching", "_tick", "_transport",
    )  # fmt: skip

    is_http: ClassVar[bool] = False

    def __init__(self, handler: PortHandler) -> None:
        super().__init__(handler)
        self._transport: asyncio.Transport | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._buffer = b""
        self._eof = False
        self._paused = False
        self._searching = False
        self._counted = False
        self._tick = handler.sweeper.tick

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Go to a pod that answers; to wake one, wait for a byte or for the grace to end."""
        # uvloop's transports have the interface, not the base class.
        self.handler.enters(cast("asyncio.Transport", transport))
        self._begin(cast("asyncio.Transport", transport))

    def take_over(self, transport: asyncio.Transport, data: bytes, *, eof: bool) -> None:
        """Go on with a connection that its port has counted, and of which some was read."""
        self._begin(transport)
        if data:
            self.data_received(data)
        if eof and self._transport is not None and not self.eof_received():
            transport.close()

    def _begin(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.handler.statistics.undecided += 1
        self.handler.sweeper.add(self)
        if self.handler.protocol is PortProtocol.TLS:
            return
        limits = self.handler.limits
        if self.handler.protocol is PortProtocol.TCP:
            self._speaks_first()
        else:
            self._later(limits.detect_grace, self._speaks_first)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Take no more than may be kept."""
        del sizehint
        return self.handler.buffer.some(self.handler.limits.held_bytes - len(self._buffer))

    def buffer_updated(self, nbytes: int) -> None:
        """Keep what was read."""
        self.data_received(self.handler.buffer.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Keep the bytes for the pod; the first of them wakes."""
        self.handler.statistics.received += len(data)
        self._buffer += data
        is_full = len(self._buffer) >= self.handler.limits.held_bytes
        if not self._paused and (is_full or not self.has_memory_for(len(self._buffer))):
            self._paused = True
            self._pause_reading()
        if self.handler.protocol is PortProtocol.DETECT and not self._searching:
            if _REQUEST_LINE.match(self._buffer):
                self._become_http()
                return
            if _UNFINISHED_LINE.match(self._buffer):
                return
        self._wants_service()

    def eof_received(self) -> bool:
        """The client sends no more; if it ever sent something, it may wait for an answer.

        Not in TLS, whose handshake would need more of it.
        """
        self._eof = True
        waits = self._counted and self._buffer != b"" and not self._is_tls()
        if waits and self._transport is not None:
            shorten_keepalive(self._transport)
        return waits

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        del exc
        transport, self._transport = self._transport, None
        self._ends()
        if transport is not None:
            self.handler.statistics.undecided -= 1
            self.handler.leaves(transport)

    def kept(self) -> int:
        """Return how much waits for a pod."""
        return len(self._buffer)

    def _ends(self) -> None:
        self.stop_search()
        self.handler.sweeper.discard(self)
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _is_tls(self) -> bool:
        return self.handler.protocol is PortProtocol.TLS or self._buffer.startswith(_HANDSHAKE)

    # the search

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self._grace = asyncio.get_running_loop().call_later(delay, call)

    def _speaks_first(self) -> None:
        """The server may: go to a pod that answers, and wake one after the grace."""
        limits = self.handler.limits
        passed = limits.detect_grace if self.handler.protocol is PortProtocol.DETECT else 0.0
        self._later(limits.tcp_grace - passed, self._wants_service)
        address = self.handler.upstream.pick()
        if address is not None:
            self._searching = True
            self._go(address)

    def _wants_service(self) -> None:
        """The connection is no mere look at the port: it is use, and it wakes."""
        self._counts()
        if not self._searching:
            self._searching = True
            self.search()

    def _counts(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if not self._counted:
            self._counted = True
            self.handler.statistics.requests += 1
            self.handler.upstream.arrived(self.handler.now())

    def connect_failed(self, address: UpstreamAddress) -> None:
        """The pod did not accept; a connection that does not count yet does not wake."""
        if self._counted:
            super().connect_failed(address)
            return
        self.found()
        self._searching = False

    def connected(self, connection: PodConnection) -> None:
        """Tunnel from now on."""
        self.found()
        transport = self._transport
        if transport is None:
            connection.drop()
            return
        self._transport = None
        self.handler.statistics.undecided -= 1
        if self.held_since is not None:
            self.handler.statistics.holds[SERVED_TCP].add(self.held_for)
        self.handler.sweeper.discard(self)
        if self._buffer:
            connection.write(self._buffer)
        if not self._counted:
            self._later(self.handler.limits.tcp_grace, self._counts)
        tunnel(
            transport,
            connection,
            statistics=self.handler.statistics,
            on_client_lost=lambda: self._tunnel_ends(transport),
            on_client_speaks=self._counts,
            client_sends_no_more=self._eof,
        )

    def _tunnel_ends(self, transport: asyncio.Transport) -> None:
        self._ends()
        self.handler.leaves(transport)

    def refuse(self, refusal: Refusal) -> None:
        """A protocol that is not known has no error response: reset."""
        del refusal
        if self.held_since is not None:
            self.handler.statistics.holds[REFUSED_TCP].add(self.held_for)
        if self._transport is not None:
            reset(self._transport)

    def _become_http(self) -> None:
        transport, self._transport = self._transport, None
        assert transport is not None
        self.handler.statistics.undecided -= 1
        self._ends()
        if self._paused:
            transport.resume_reading()
        self.handler.statistics.received -= len(self._buffer)
        client = ClientConnection(self.handler)
        transport.set_protocol(client)
        client.take_over(transport, self._buffer)

    def sweep(self, tick: int) -> None:
        """Close a connection that never speaks, and notice one that is gone and not read."""
        transport = self._transport
        if transport is None or self.gave_up_search(tick):
            return
        if not self._counted:
            if tick - self._tick > self.handler.limits.first_byte:
                transport.close()
        elif (self._eof or self._paused) and is_reset(transport):
            transport.abort()
