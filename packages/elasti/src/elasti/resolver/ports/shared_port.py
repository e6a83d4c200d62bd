"""The port that all Services share: KubeElasti's, where the Host header names the Service.

The head of a connection's first request is read here; then the connection goes to the Service's own port
handler, with every byte that was read. An HTTP/1 connection carries one request and is closed: the next one
may be for another Service, and must be routed again. On an h2 connection streams of another authority get
421. Requests for unknown Services get 404 and wake nothing.

h2 is served where the client sends its first request without waiting for our SETTINGS; clients that wait
need a port of their own, which every port of an ElastiService has.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterable
from typing import TYPE_CHECKING, cast

from elasti.resolver.ports.listening_socket import (
    Acceptor,
    accept_queue_length,
    bound_socket,
    stop_new_handshakes,
)
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.h2.frames import PREFACE, H2Error
from elasti.resolver.proxy.h2.held import H2Request, HeldFrames
from elasti.resolver.proxy.http1.heads import MAX_HEAD, HeadError, parse_request, refuse_or_wait
from elasti.resolver.proxy.http1.writer import refusal_response
from elasti.resolver.proxy.quota import PAGE, QuotaShare
from elasti.resolver.proxy.transport import BufferedClientProtocol, ReadBuffer
from elasti.resolver.proxy.upstream.interface import PortProtocol, Refusal, RequestFacts

if TYPE_CHECKING:
    import asyncio
    import socket

    from elasti.resolver.proxy.deadlines import DeadlineSweeper
    from elasti.resolver.proxy.port_handler import DataPath, PortHandler
    from elasti.resolver.services.registry import ServiceRegistry
    from elasti.resolver.services.service import WakeablePort

_PATIENCE_TICKS = 30
_PREFACE_LINE = b"PRI * HTTP/2.0\r\n"
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_LONGEST = 512
_REMEMBERED = 4096


class HostRules:
    """Reads Host values for one cluster domain; remembers a bounded number of answers.

    KubeElasti's rules, read strictly: the whole value must be a Service's name in one of the forms that
    cluster DNS knows, with an optional port, and (since gateways write routes into such headers) an
    optional scheme and path:

        web.shop    web.shop.svc    web.shop.svc.cluster.local    web.shop.svc:8080    http://web.shop/*

    Anything else names no Service: external names, addresses of either family, longer or shorter names. A
    name that parses is still accepted only if its Service has an ElastiService, so no client can make the
    resolver connect to where it was not meant to.
    """

    def __init__(self, *, cluster_domain: str) -> None:
        domain = re.escape(cluster_domain.strip(".").lower())
        self._pattern = re.compile(
            rf"(?:https?://)?(?P<service>{_LABEL})\.(?P<namespace>{_LABEL})"
            rf"(?:\.svc(?:\.{domain})?)?\.?(?::\d{{1,5}})?(?:/.*)?",
            re.DOTALL,
        )
        self._read = functools.lru_cache(maxsize=_REMEMBERED)(self._parse)

    def service_of(self, value: str, known: Container[ServiceKey]) -> ServiceKey | None:
        """Return the Service that a value names, if it is a known one."""
        if len(value) > _LONGEST:
            return None
        key = self._read(value)
        return key if key is not None and key in known else None

    def _parse(self, value: str) -> ServiceKey | None:
        found = self._pattern.fullmatch(value.strip(" \t").lower())
        return ServiceKey(found["namespace"], found["service"]) if found else None


class SharedConnection(BufferedClientProtocol):
    """A connection whose Service is not known yet; it has taken of the share."""

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
        """Wait for a head."""
        self._transport = cast("asyncio.Transport", transport)
        self._sweeper.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Take a head at most, or what of it is missing."""
        return self._reads.some(MAX_HEAD + 1 - len(self._buffer))

    def buffer_updated(self, nbytes: int) -> None:
        """Use what was read."""
        self.data_received(self._reads.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Read the head; hand the connection over when it is complete."""
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
            self._refuse(431, "the request's head is too long")
        else:
            self._pages = self._memory.resize(self._pages, len(self._buffer))
            if self._pages * PAGE < len(self._buffer):
                self._refuse(Refusal.OVERFLOW.status, Refusal.OVERFLOW.message)

    def eof_received(self) -> bool:
        """No request will come."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """No request came."""
        self._release_transport()

    def sweep(self, tick: int) -> None:
        """Wait no longer for a head."""
        if self._transport is not None and tick - self._tick > _PATIENCE_TICKS:
            self._transport.abort()

    def _first_request(self, seen: int) -> RequestFacts | None:
        """Return the first request when its head is complete; the first `seen` bytes were parsed before."""
        buffer = self._buffer
        if self._frames is not None:
            return self._first_stream(self._frames, buffer[seen:])
        if buffer.startswith(PREFACE):
            self._frames = HeldFrames(limit=MAX_HEAD)
            return self._first_stream(self._frames, buffer[len(PREFACE) :])
        if buffer.startswith(_PREFACE_LINE):
            if not PREFACE.startswith(buffer):
                raise H2Error("the preface of HTTP/2 is not complete")
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
            self._refuse(404, "no ElastiService is for the Service that the Host header names")
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
            self._share.give()
            self._pages = self._memory.resize(self._pages, 0)
        return transport


class SharedPort:
    """Listens on the shared port, and routes its connections."""

    def __init__(
        self, *, path: DataPath, registry: ServiceRegistry, rules: HostRules, header: str = "Host"
    ) -> None:
        self._path = path
        self._registry = registry
        self._rules = rules
        self._header = header.lower().encode()
        self._handlers: dict[WakeablePort, tuple[ServiceKey, PortHandler]] = {}
        # Connections whose Service is not known yet; later they count in the Service's own share.
        self._share = path.quotas.clients.share()
        self._memory = path.quotas.memory.share()
        self._server: Acceptor | None = None
        self._sock: socket.socket | None = None
        self.found = 0
        self.unknown = 0

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> int:
        """Listen; returns the port."""
        sock = self._sock = bound_socket(host, port, reuse_port=reuse_port)
        self._server = Acceptor(self._make, sock)
        return int(sock.getsockname()[1])

    def stop_new_handshakes(self) -> None:
        """Let no new handshake begin; what is in the accept queue is accepted."""
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
        self._memory.close()

    def handlers(self) -> Iterable[tuple[ServiceKey, PortHandler]]:
        """Return every handler, with its Service."""
        return self._handlers.values()

    def protocol_for(self, request: RequestFacts) -> BufferedClientProtocol | None:
        """Return the protocol that goes on with a connection; None where no Service is named."""
        routed = self._route(request)
        if routed is None:
            self.unknown += 1
            return None
        self.found += 1
        return self._handler(*routed)()

    def _route(self, request: RequestFacts) -> tuple[ServiceKey, WakeablePort] | None:
        value = request.field(self._header) if self._header != b"host" else None
        text = (value or request.host or b"").decode("latin-1")
        key = self._rules.service_of(text, self._registry)
        port = self._registry.default_port(key, _number(text)) if key is not None else None
        return None if key is None or port is None else (key, port)

    def _handler(self, key: ServiceKey, port: WakeablePort) -> PortHandler:
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
        """Drop the handlers that have no connections."""
        for port, (_, handler) in list(self._handlers.items()):
            if not handler.connections:
                del self._handlers[port]
                handler.close()

    def _make(self) -> BufferedClientProtocol:
        path = self._path
        if not self._share.take():
            return path.refusals.refuse(is_http=True)
        return SharedConnection(
            router=self,
            sweeper=path.sweeper,
            reads=path.buffer,
            share=self._share,
            memory=self._memory,
        )


def _number(host: str) -> int | None:
    """Return the port that a Host value names."""
    _, found, port = host.rpartition(":")
    return int(port) if found and port.isdecimal() and len(port) <= 5 else None
