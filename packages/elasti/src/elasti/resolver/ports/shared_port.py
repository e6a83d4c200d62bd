"""The port that all Services share: KubeElasti's, where the Host header names the Service.

The head of a connection's first request is read here; then the connection goes to the Service's own port
handler, with every byte that was read. It carries one request and is closed: the next one may be for
another Service, and must be routed again. Requests for unknown Services get 404 and wake nothing.

h2 is served where the client sends its first request without waiting for our SETTINGS; clients that wait
need a port of their own, which every port of an ElastiService has.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from elasti.resolver.ports.listeners import BACKLOG
from elasti.resolver.ports.listening_socket import (
    accept_queue_length,
    bound_socket,
    stop_new_handshakes,
)
from elasti.resolver.proxy.h2.frames import PREFACE
from elasti.resolver.proxy.h2.held import H2Error, H2Request, HeldFrames
from elasti.resolver.proxy.http1.heads import MAX_HEAD, HeadError, parse_request
from elasti.resolver.proxy.http1.writer import refusal_response
from elasti.resolver.proxy.transport import BufferedClientProtocol
from elasti.resolver.proxy.upstream.interface import PortProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from elasti.resolver.ports.host_rules import HostRules
    from elasti.resolver.projections import ServiceKey
    from elasti.resolver.proxy.deadlines import DeadlineSweeper
    from elasti.resolver.proxy.port_handler import DataPath, PortHandler
    from elasti.resolver.proxy.quota import QuotaShare
    from elasti.resolver.proxy.statistics import TrafficStatistics
    from elasti.resolver.proxy.transport import ReadBuffer
    from elasti.resolver.proxy.upstream.interface import (
        HeldConnection,
        LocalAnswer,
        Refusal,
        RequestFacts,
        Upstream,
        UpstreamAddress,
    )
    from elasti.resolver.services.registry import ServiceRegistry
    from elasti.resolver.services.service import WakeablePort


_PATIENCE_TICKS = 30
_PREFACE = b"PRI * HTTP/2.0\r\n"


class HostRouter(Protocol):
    """Finds the front of whom a request is for."""

    def protocol_for(self, asked: RequestFacts) -> BufferedClientProtocol | None:
        """Return the protocol that goes on with the connection; None for nobody."""


class SingleRequestUpstream:
    """A target whose connections end after one answer."""

    __slots__ = ("_target",)

    stepping_aside = True

    def __init__(self, target: Upstream) -> None:
        self._target = target

    @property
    def statistics(self) -> TrafficStatistics:
        """The target's."""
        return self._target.statistics

    def pick(self) -> UpstreamAddress | None:
        """As the target."""
        return self._target.pick()

    def wait(self, waiter: HeldConnection, *, first: bool = False) -> Refusal | None:
        """As the target."""
        return self._target.wait(waiter, first=first)

    def leave(self, waiter: HeldConnection) -> None:
        """As the target."""
        self._target.leave(waiter)

    def refused(self, address: UpstreamAddress) -> None:
        """As the target."""
        self._target.refused(address)

    def answer_locally(self, asked: RequestFacts) -> LocalAnswer | None:
        """As the target."""
        return self._target.answer_locally(asked)

    def arrived(self, now: float) -> None:
        """As the target."""
        self._target.arrived(now)


class SharedConnection(BufferedClientProtocol):
    """A connection of which nobody knows yet whom it is for; it has taken of the share."""

    __slots__ = ("_buffer", "_reads", "_router", "_share", "_sweeper", "_tick", "_transport")

    def __init__(
        self, *, router: HostRouter, sweeper: DeadlineSweeper, reads: ReadBuffer, share: QuotaShare
    ) -> None:
        self._router = router
        self._reads = reads
        self._sweeper = sweeper
        self._share = share
        self._buffer = b""
        self._tick = sweeper.tick
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for a head."""
        self._transport = cast("asyncio.Transport", transport)
        self._sweeper.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Take a head at most, or what of it is missing."""
        del sizehint
        return self._reads.some(MAX_HEAD + 1 - len(self._buffer))

    def buffer_updated(self, nbytes: int) -> None:
        """Use what was read."""
        self.data_received(self._reads.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Read the head; hand the connection over when it is complete."""
        if self._transport is None:
            return
        self._buffer += data
        try:
            asked = self._asked()
        except HeadError as error:
            self._refuse(error.status, str(error))
            return
        except H2Error as error:
            self._refuse(400, str(error))
            return
        if asked is not None:
            self._hand_over(asked)
        elif len(self._buffer) > MAX_HEAD:
            self._refuse(431, "the request's head is too long")

    def eof_received(self) -> bool:
        """No request will come."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody came."""
        del exc
        self._release_transport()

    def sweep(self, tick: int) -> None:
        """Wait no longer for a head."""
        if self._transport is not None and tick - self._tick > _PATIENCE_TICKS:
            self._transport.abort()

    def _asked(self) -> RequestFacts | None:
        if self._buffer.startswith(_PREFACE):
            return _first_h2_request(self._buffer)
        return parse_request(self._buffer)

    def _hand_over(self, asked: RequestFacts) -> None:
        protocol = self._router.protocol_for(asked)
        if protocol is None:
            self._refuse(404, "no ElastiService is for the Service that the Host header names")
            return
        transport = self._release_transport()
        if transport is not None and not transport.is_closing():
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            protocol.data_received(self._buffer)

    def _refuse(self, status: int, words: str) -> None:
        transport = self._transport
        if transport is not None:
            transport.write(refusal_response(status, words, retry=False))
            transport.close()

    def _release_transport(self) -> asyncio.Transport | None:
        transport, self._transport = self._transport, None
        if transport is not None:
            self._sweeper.discard(self)
            self._share.give()
        return transport


def _first_h2_request(data: bytes) -> H2Request | None:
    """Return the first request of an h2 connection; None while it is not complete."""
    if len(data) < len(PREFACE):
        return None
    if not data.startswith(PREFACE):
        raise H2Error("the preface of HTTP/2 is not complete")
    events = HeldFrames().read(data[len(PREFACE) :])
    return next((event for event in events if isinstance(event, H2Request)), None)


class SharedPort:
    """Listens on the shared port; a `Directory` for its connections."""

    def __init__(
        self, *, path: DataPath, registry: ServiceRegistry, rules: HostRules, header: str = "Host"
    ) -> None:
        self._path = path
        self._registry = registry
        self._rules = rules
        self._header = header.lower().encode()
        self._handlers: dict[WakeablePort, tuple[ServiceKey, PortHandler]] = {}
        # Connections of which nobody knows yet whom they are for; a Service's own come from it.
        self._share = path.quotas.clients.share()
        self._server: asyncio.AbstractServer | None = None
        self._sock: socket.socket | None = None
        self.found = 0
        self.unknown = 0

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> int:
        """Listen; returns the port."""
        sock = self._sock = bound_socket(host, port, reuse_port=reuse_port)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make, sock=sock, backlog=BACKLOG)
        return int(sock.getsockname()[1])

    def stop_new_handshakes(self) -> None:
        """Let nobody else come; whoever has come is accepted."""
        if self._sock is not None:
            stop_new_handshakes(self._sock)

    def close(self) -> None:
        """Stop listening; connections go on."""
        if self._server is not None:
            self._server.close()
            self._server = self._sock = None

    def waiting(self) -> int:
        """How many connections the kernel holds that were not accepted yet."""
        return accept_queue_length(self._sock) if self._sock is not None else 0

    def break_all(self) -> None:
        """Break every connection."""
        for _, handler in self._handlers.values():
            handler.close()
        self._handlers.clear()
        self._share.close()

    def handlers(self) -> Iterable[tuple[ServiceKey, PortHandler]]:
        """Return every front, with its Service."""
        return self._handlers.values()

    def protocol_for(self, asked: RequestFacts) -> BufferedClientProtocol | None:
        """Return the protocol that goes on with a connection; None for nobody."""
        value = asked.field(self._header) if self._header != b"host" else None
        text = (value or asked.host or b"").decode("latin-1")
        key = self._rules.service_of(text, self._registry)
        port = self._registry.default_port(key, _number(text)) if key is not None else None
        if key is None or port is None:
            self.unknown += 1
            return None
        self.found += 1
        return self._handler(key, port)()

    def _handler(self, key: ServiceKey, port: WakeablePort) -> PortHandler:
        known = self._handlers.get(port)
        if known is None:
            self._forget_idle()
            handler = self._path.handler(SingleRequestUpstream(port), PortProtocol.HTTP, owner=key)
            known = self._handlers[port] = (key, handler)
        return known[1]

    def _forget_idle(self) -> None:
        """Drop the fronts that have no connections."""
        for port, (_, handler) in list(self._handlers.items()):
            if not handler.connections:
                del self._handlers[port]
                handler.close()

    def _make(self) -> BufferedClientProtocol:
        path = self._path
        if not self._share.take():
            return path.refusals.refuse(is_http=True)
        return SharedConnection(
            router=self, sweeper=path.sweeper, reads=path.buffer, share=self._share
        )


def _number(host: str) -> int | None:
    """Return the port that a Host value names."""
    _, found, port = host.rpartition(":")
    return int(port) if found and port.isdecimal() and len(port) <= 5 else None
