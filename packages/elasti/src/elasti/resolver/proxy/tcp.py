"""A connection on a port that is not known to be HTTP: held as bytes, then tunnelled.

Servers may speak first, so the connection itself asks for a pod. If a pod serves, it is connected at once. If one
has to be woken, that waits for the first byte or for a second, since health checks connect and disconnect. TLS
clients speak first, so there only a byte wakes. A PROXY header is the proxy's word and not the client's: HAProxy's
checks send one and close, so it counts as no byte. Bytes that the client sends meanwhile are kept up to a limit;
then TCP pushes back.

On a port without a declared protocol, a first line that is an HTTP request line makes the connection HTTP. No
other protocol in use looks like `METHOD target HTTP/1.1`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import ClassVar, cast

from elasti.resolver.proxy.first_message import PROXY_SIGNATURE, is_first_message
from elasti.resolver.proxy.http1.connection import ClientConnection
from elasti.resolver.proxy.port import Port
from elasti.resolver.proxy.statistics import REFUSED_TCP, SERVED, SERVED_TCP
from elasti.resolver.proxy.transport import BufferedClientProtocol
from elasti.resolver.proxy.tunnel import tunnel
from elasti.resolver.proxy.upstream.interface import PortProtocol, Refusal, UpstreamAddress
from elasti.resolver.proxy.upstream.pod_connection import PodConnection
from elasti.resolver.proxy.upstream.search import UpstreamSearch
from kubeloop.aio.keepalive import Keepalive
from kubeloop.aio.relay import is_reset, reset

_REQUEST_LINE = re.compile(rb"(?:[A-Z]{3,20} [\x21-\x7e]++ HTTP/1\.[01]|PRI \* HTTP/2\.0)\r\n")
# The beginning of a request line.
_UNFINISHED_LINE = re.compile(rb"[A-Z]{1,20}+(?: [\x21-\x7e]{0,8192}+(?: [HTP/12.0]{0,8}+\r?)?)?\Z")
# Probes whether a half-closed client is still there. Its kernel answers with a reset once it has forgotten the
# connection, a minute after the client closed it (`tcp_fin_timeout`).
_HALF_CLOSED = Keepalive(idle=5, interval=5, probes=3)
# A PROXY header of version 1, or the beginning of one, and nothing behind it.
_PROXY_LINE = re.compile(rb"PROXY [^\r\n]{0,101}+(?:\r\n?)?\Z")
# The first record of a TLS connection.
_HANDSHAKE = b"\x16\x03"


def is_proxy_header(data: bytes) -> bool:
    """Whether bytes are a PROXY header, whole or not, and nothing else."""
    if data.startswith(PROXY_SIGNATURE):
        # Version and command, family, and the length of the rest.
        return len(data) <= 16 + int.from_bytes(data[14:16], "big")
    return bool(_PROXY_LINE.match(data)) or (len(data) > 4 and PROXY_SIGNATURE.startswith(data))


class TcpConnection(UpstreamSearch, BufferedClientProtocol):
    """A client's connection until it is tunnelled."""

    __slots__ = (
        "_buffer", "_counted", "_eof", "_grace", "_paused", "_searching", "_tick", "_transport",
    )  # fmt: skip

    is_http: ClassVar[bool] = False

    def __init__(self, handler: Port) -> None:
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
        """Connect to a serving pod; to wake one, wait for a byte or for the grace to end."""
        # uvloop's transports have the interface, not the base class.
        self.handler.enters(cast("asyncio.Transport", transport))
        self._begin(cast("asyncio.Transport", transport))

    def take_over(self, transport: asyncio.Transport, data: bytes, *, eof: bool) -> None:
        """Continue a connection that is already counted, with the bytes read so far."""
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
        """Read no more than may be kept."""
        del sizehint
        return self.handler.buffer.some(self.handler.limits.held_bytes - len(self._buffer))

    def buffer_updated(self, nbytes: int) -> None:
        """Keep the bytes read."""
        self.data_received(self.handler.buffer.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Keep bytes for the pod; the first byte wakes it."""
        self.handler.statistics.received += len(data)
        self._buffer += data
        is_full = len(self._buffer) >= self.handler.limits.held_bytes
        if not self._paused and (is_full or not self.has_memory_for(len(self._buffer))):
            self._paused = True
            self._pause_reading()
        if not self._counted and is_proxy_header(self._buffer):
            return
        if self.handler.protocol is PortProtocol.DETECT and not self._searching:
            if _REQUEST_LINE.match(self._buffer):
                self._become_http()
                return
            if _UNFINISHED_LINE.match(self._buffer):
                return
        if self._searching or self.handler.upstream.tcp_wake != "Protocol":
            self._wants_service()
            return
        known = is_first_message(self._buffer)
        if known:
            self._wants_service()
        elif known is False and self._transport is not None:
            self.handler.upstream.ignored("tcp")
            reset(self._transport)

    def eof_received(self) -> bool:
        """The client half-closed; if it has sent bytes, it may still wait for a response.

        A TLS client cannot: its handshake would need more bytes.
        """
        self._eof = True
        waits = self._counted and self._buffer != b"" and not self._is_tls()
        if waits and self._transport is not None:
            _HALF_CLOSED.enable(self._transport.get_extra_info("socket"))
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
        """Return how many bytes are kept for a pod."""
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
        """The server may speak first: connect to a serving pod, and wake one after the grace."""
        limits = self.handler.limits
        passed = limits.detect_grace if self.handler.protocol is PortProtocol.DETECT else 0.0
        if self.handler.upstream.tcp_wake == "Connect":
            self._later(limits.tcp_grace - passed, self._wants_service)
        address = self.handler.upstream.pick()
        if address is not None:
            self._searching = True
            self._go(address)

    def _wants_service(self) -> None:
        """Count the connection as use, and wake a pod if none serves."""
        self._counts()
        if not self._searching:
            self._searching = True
            self.search()

    def _speaks(self, data: bytes) -> bool:
        """Count a tunnelled connection as use when its client has spoken; returns whether it has."""
        if is_proxy_header(data):
            return False
        self._counts()
        return True

    def _counts(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        if not self._counted:
            self._counted = True
            self.handler.statistics.requests += 1
            self.handler.upstream.arrived(self.handler.now())

    def connect_failed(self, address: UpstreamAddress) -> None:
        """The pod did not accept. A connection that does not count as use yet does not wake."""
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
        self._hold_ended(SERVED_TCP, SERVED)
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
            on_client_speaks=self._speaks,
            client_sends_no_more=self._eof,
        )

    def _tunnel_ends(self, transport: asyncio.Transport) -> None:
        self._ends()
        self.handler.leaves(transport)

    def refuse(self, refusal: Refusal) -> None:
        """Reset the connection: an unknown protocol has no error response."""
        self._hold_ended(REFUSED_TCP, refusal.outcome)
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
        """Close a connection that never speaks, and one whose client vanished while it is not read."""
        transport = self._transport
        if transport is None or self.gave_up_search(tick):
            return
        if not self._counted:
            if tick - self._tick > self.handler.limits.first_byte:
                transport.close()
        elif (self._eof or self._paused) and is_reset(transport):
            transport.abort()
