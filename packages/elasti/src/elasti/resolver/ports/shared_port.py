"""KubeElasti's shared port: one port for all Services, where the Host header names the Service.

The head of a connection's first request is read here. Then the connection goes to the Service's port handler,
with every byte that was read. An HTTP/1 connection is closed after one request: the next may be for another
Service, and must be routed again. On an h2 connection, streams of another authority get 421. Requests for
unknown Services get 404 and wake nothing.

h2 works if the client sends its first request without waiting for our SETTINGS. Other clients need a port of
their own, which every port of an ElastiService has.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import socket
from collections.abc import Container, Iterable
from typing import Protocol, cast

from elasti.resolver.ports.listening_socket import (
    Acceptor,
    accept_queue_length,
    bound_socket,
    stop_new_handshakes,
)
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.h2.frames import PREFACE, H2Error
from elasti.resolver.proxy.h2.held import H2Request, HeldFrames
from elasti.resolver.proxy.http1.heads import MAX_HEAD, HeadError, parse_request, refuse_or_wait
from elasti.resolver.proxy.own_responses import refusal_response
from elasti.resolver.proxy.port_handler import DataPath, PortHandler
from elasti.resolver.proxy.quota import PAGE, QuotaShare
from elasti.resolver.proxy.transport import BufferedClientProtocol, ReadBuffer
from elasti.resolver.proxy.upstream.interface import PortProtocol, Refusal, RequestFacts, Upstream
from kubeloop.objects.names import DNS_LABEL_63

_PATIENCE_TICKS = 30
# How many of the youngest connections are looked at for one to shed.
_LOOKED_AT = 64
_PREFACE_LINE = b"PRI * HTTP/2.0\r\n"
_LONGEST = 512
_REMEMBERED = 4096


class HostRules:
    """Parses Host values for one cluster domain, with a bounded cache.

    KubeElasti's rules, strictly: the whole value must be a Service name in one of the forms of cluster DNS, with
    an optional port and (since gateways write routes into such headers) an optional scheme and path:

        web.shop    web.shop.svc    web.shop.svc.cluster.local    web.shop.svc:8080    http://web.shop/*

    Anything else names no Service: external names, IP addresses, longer or shorter names. A name that parses is
    accepted only if its Service has an ElastiService, so no client can make the resolver connect elsewhere.
    """

    def __init__(self, *, cluster_domain: str) -> None:
        domain = re.escape(cluster_domain.strip(".").lower())
        self._pattern = re.compile(
            rf"(?:https?://)?(?P<service>{DNS_LABEL_63})\.(?P<namespace>{DNS_LABEL_63})"
            rf"(?:\.svc(?:\.{domain})?)?\.?(?::\d{{1,5}})?(?:/.*)?",
            re.DOTALL,
        )
        self._read = functools.lru_cache(maxsize=_REMEMBERED)(self._parse)

    def service_of(self, value: str, known: Container[ServiceKey]) -> ServiceKey | None:
        """Return the Service that a value names, if it is known."""
        if len(value) > _LONGEST:
            return None
        key = self._read(value)
        return key if key is not None and key in known else None

    def _parse(self, value: str) -> ServiceKey | None:
        found = self._pattern.fullmatch(value.strip(" \t").lower())
        return ServiceKey(found["namespace"], found["service"]) if found else None


class SharedConnection(BufferedClientProtocol):
    """A connection whose Service is not known yet. It counts in the shared port's quota."""

    __slots__ = (
        "_buffer",
        "_frames",
        "_memory",
        "_pages",
        "_reads",
        "_router",
        "_share",
        "_sweeper",
        "_tick",
        "_transport",
    )

    def __init__(
        self,
        *,
        router: SharedPort,
        sweeper: DeadlineSweeper,
        reads: ReadBuffer,
        share: QuotaShare,
        memory: QuotaShare,
    ) -> None:
        self._router = router
        self._reads = reads
        self._sweeper = sweeper
        self._share = share
        self._memory, self._pages = memory, 0
        self._buffer = b""
        self._frames: HeldFrames | None = None
        self._tick = sweeper.tick
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first head."""
        self._transport = cast("asyncio.Transport", transport)
        self._router.enters(self, self._transport)
        self._sweeper.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read at most one head."""
        return self._reads.some(MAX_HEAD + 1 - len(self._buffer))

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes read."""
        self.data_received(self._reads.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Read the head, and hand the connection over once it is complete."""
        if self._transport is None:
            return
        seen = len(self._buffer)
        self._buffer += data
        try:
            request = self._first_request(seen)
        except HeadError as error:
            self._refuse(error.status, str(error))
            return
        except H2Error as error:
            self._refuse(400, str(error))
            return
        if request is not None:
            self._hand_over(request)
        elif len(self._buffer) > MAX_HEAD:
            self._refuse(431, "the request head is larger than 64 KiB")
        else:
            self._pages = self._memory.resize(self._pages, len(self._buffer))
            if self._pages * PAGE < len(self._buffer):
                self._refuse(Refusal.OVERFLOW.status, Refusal.OVERFLOW.message)

    def eof_received(self) -> bool:
        """Close: no request will come."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client closed before its first request."""
        self._release_transport()

    def sweep(self, tick: int) -> None:
        """Close a connection that does not send a head in time."""
        if self._transport is not None and tick - self._tick > _PATIENCE_TICKS:
            self._transport.abort()

    def shed(self) -> bool:
        """End the connection to make room for others; returns whether it did."""
        if self._transport is None or self._transport.is_closing():
            return False
        self._pages = self._memory.resize(self._pages, 0)
        self._transport.abort()
        return True

    def _first_request(self, seen: int) -> RequestFacts | None:
        """Return the first request once its head is complete. The first `seen` bytes were parsed before."""
        buffer = self._buffer
        if self._frames is not None:
            return self._first_stream(self._frames, buffer[seen:])
        if buffer.startswith(PREFACE):
            self._frames = HeldFrames(limit=MAX_HEAD)
            return self._first_stream(self._frames, buffer[len(PREFACE) :])
        if buffer.startswith(_PREFACE_LINE):
            if not PREFACE.startswith(buffer):
                raise H2Error("malformed HTTP/2 preface")
            return None
        if buffer.find(b"\r\n\r\n", max(seen - 3, 0)) < 0:
            refuse_or_wait(buffer, 0, seen)
            return None
        return parse_request(buffer)

    def _first_stream(self, frames: HeldFrames, data: bytes) -> H2Request | None:
        return next((event for event in frames.read(data) if isinstance(event, H2Request)), None)

    def _hand_over(self, request: RequestFacts) -> None:
        protocol = self._router.protocol_for(request)
        if protocol is None:
            self._refuse(404, "the Host header does not name a Service with an ElastiService")
            return
        transport = self._release_transport()
        if transport is not None and not transport.is_closing():
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            protocol.data_received(self._buffer)

    def _refuse(self, status: int, message: str) -> None:
        transport = self._transport
        if transport is not None:
            transport.write(refusal_response(status, message, retry=False))
            transport.close()

    def _release_transport(self) -> asyncio.Transport | None:
        transport, self._transport = self._transport, None
        if transport is not None:
            self._sweeper.discard(self)
            self._router.leaves(self)
            self._share.give()
            self._pages = self._memory.resize(self._pages, 0)
        return transport


class RoutableServices(Protocol):
    """The Services that a Host header may name."""

    def __contains__(self, key: object) -> bool: ...

    def default_port(self, key: ServiceKey, number: int | None) -> Upstream | None:
        """Return a Service's port by number, or its first port."""


class SharedPort:
    """Listens on the shared port and routes its connections."""

    def __init__(
        self, *, path: DataPath, registry: RoutableServices, rules: HostRules, header: str = "Host"
    ) -> None:
        self._path = path
        self._registry = registry
        self._rules = rules
        self._header = header.lower().encode()
        self._handlers: dict[Upstream, tuple[ServiceKey, PortHandler]] = {}
        # For connections whose Service is not known yet; later they count in the Service's share.
        self._share = path.quotas.clients.share(self._shed)
        self._memory = path.quotas.memory.share(self._shed)
        # In the order in which they came, each with the key of its client's address.
        self._unrouted: dict[SharedConnection, str] = {}
        self._server: Acceptor | None = None
        self._sock: socket.socket | None = None
        self.found = 0
        self.unknown = 0

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> int:
        """Listen. Returns the port."""
        sock = self._sock = bound_socket(host, port, reuse_port=reuse_port)
        self._server = Acceptor(self._make, sock)
        return int(sock.getsockname()[1])

    def stop_new_handshakes(self) -> None:
        """Refuse new handshakes; connections in the accept queue are still accepted."""
        if self._sock is not None:
            stop_new_handshakes(self._sock)

    def close(self) -> None:
        """Stop listening; open connections continue."""
        if self._server is not None:
            self._server.close()
            self._server = self._sock = None

    def waiting(self) -> int:
        """How many connections are in the accept queue."""
        return accept_queue_length(self._sock) if self._sock is not None else 0

    def break_all(self) -> None:
        """Abort every connection."""
        for _, handler in self._handlers.values():
            handler.close()
        self._handlers.clear()
        self._share.close()
        self._memory.close()

    def handlers(self) -> Iterable[tuple[ServiceKey, PortHandler]]:
        """Return every handler, with its Service."""
        return self._handlers.values()

    def protocol_for(self, request: RequestFacts) -> BufferedClientProtocol | None:
        """Return the protocol that continues a connection; None if the request names no known Service."""
        routed = self._route(request)
        if routed is None:
            self.unknown += 1
            return None
        self.found += 1
        # Its client's address was counted when it was accepted.
        return self._handler(*routed)()

    def _route(self, request: RequestFacts) -> tuple[ServiceKey, Upstream] | None:
        value = request.field(self._header) if self._header != b"host" else None
        text = (value or request.host or b"").decode("latin-1")
        key = self._rules.service_of(text, self._registry)
        port = self._registry.default_port(key, _number(text)) if key is not None else None
        return None if key is None or port is None else (key, port)

    def _handler(self, key: ServiceKey, port: Upstream) -> PortHandler:
        known = self._handlers.get(port)
        if known is None:
            self._forget_idle()
            handler = self._path.handler(
                port,
                PortProtocol.HTTP,
                owner=key,
                accepts=lambda request: self._route(request) == (key, port),
            )
            known = self._handlers[port] = (key, handler)
        return known[1]

    def _forget_idle(self) -> None:
        """Drop handlers without connections."""
        for port, (_, handler) in list(self._handlers.items()):
            if not handler.connections:
                del self._handlers[port]
                handler.close()

    def enters(self, connection: SharedConnection, transport: asyncio.Transport) -> None:
        """Count a connection whose Service is not known yet."""
        peer = transport.get_extra_info("peername")
        self._unrouted[connection] = self._path.addresses.add(peer[0] if peer else "")

    def leaves(self, connection: SharedConnection) -> None:
        """Stop counting a connection: its Service is known, or it has ended."""
        self._path.addresses.remove(self._unrouted.pop(connection))

    def _shed(self) -> bool:
        """End the youngest connection whose Service is not known yet."""
        youngest = itertools.islice(reversed(self._unrouted), _LOOKED_AT)
        return any(connection.shed() for connection in youngest)

    def _make(self, client: str) -> BufferedClientProtocol:
        path = self._path
        if path.addresses.is_full(client) or not self._share.take():
            return path.refusals.refuse(is_http=True)
        return SharedConnection(
            router=self,
            sweeper=path.sweeper,
            reads=path.buffer,
            share=self._share,
            memory=self._memory,
        )


def _number(host: str) -> int | None:
    """Return the port number in a Host value."""
    _, found, port = host.rpartition(":")
    return int(port) if found and port.isdecimal() and len(port) <= 5 else None
