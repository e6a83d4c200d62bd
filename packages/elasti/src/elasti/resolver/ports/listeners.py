"""The listeners: one for each resolver port, bound and closed as Services come and go.

One task changes them, one port after the other, so that a thousand Services that appear at once do not
stall the connections that are served. A listener's protocol may change (the Service says `http` now)
without closing its socket. A port that changes its owner is closed first; connections of the old owner end
by themselves, also those in the accept queue: a socket stops new handshakes, its queue is emptied, and only
then is it closed.

With several workers each binds the same ports with SO_REUSEPORT, and the kernel divides connections.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import socket
from collections import Counter
from collections.abc import Callable, Iterable

from elasti.logger import get_logger
from elasti.resolver.ports.claims import PortClaim, PortClaims
from elasti.resolver.ports.listening_socket import (
    HANDSHAKE,
    Acceptor,
    accept_queue_length,
    bound_socket,
    stop_new_handshakes,
)
from elasti.resolver.ports.ownership_probe import OwnershipProbeConnection
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.brief import BriefPoll
from elasti.resolver.proxy.port_handler import DataPath, PortHandler
from elasti.resolver.proxy.quota import ServiceQuota
from elasti.resolver.proxy.transport import BufferedClientProtocol
from elasti.resolver.proxy.upstream.interface import PortProtocol, Upstream

_RETRY = 1.0
_RETIRE_EVERY = 5.0
# How long a socket that is to be closed waits for its connections to be accepted.
_PATIENCE = 5.0
# A port that is contested again and again is logged this often.
_LOG_EVERY = 60.0
_MOST_NAMED = 10

_log = get_logger(__name__)


@dataclasses.dataclass(slots=True, eq=False)
class ServicePortListener:
    """One port: its socket, and the handler that makes protocols for its connections.

    The handler is made for the first connection and goes a while after the last, since most Services have
    no connections for most of the time. The quota is the Service's from the start: it can always be woken.
    """

    claim: PortClaim
    sock: socket.socket
    _: dataclasses.KW_ONLY
    quota: ServiceQuota
    make_handler: Callable[[PortClaim], PortHandler]
    handler: PortHandler | None = dataclasses.field(default=None, init=False)
    server: Acceptor | None = dataclasses.field(default=None, init=False)

    def __call__(self, client: str) -> BufferedClientProtocol:
        """Return the protocol for a connection that is being accepted from a client's address."""
        handler = self.handler
        if handler is None:
            handler = self.handler = self.make_handler(self.claim)
        # A request's first line shows a probe on the other ports.
        if handler.protocol not in (PortProtocol.TCP, PortProtocol.TLS):
            return handler(client)
        return (
            OwnershipProbeConnection(self.claim.key, handler)
            if handler.admits(client)
            else handler.refuse()
        )

    def brief_poll(self) -> BriefPoll | None:
        """Return what watches connections that end with their first answer: once pods take over."""
        return None if self.handler is None else self.handler.brief_poll()

    def waiting(self) -> int:
        """How many connections are in the accept queue."""
        return accept_queue_length(self.sock)


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class ServicePortListeners:
    """All listening sockets of one worker. `upstream` returns the upstream of a claim.

    `closed` is called for a Service whose last socket was closed.
    """

    path: DataPath
    claims: PortClaims
    upstream: Callable[[PortClaim], Upstream]
    host: str | None = None
    reuse_port: bool = False
    closed: Callable[[ServiceKey], None] = lambda _key: None

    def __post_init__(self) -> None:
        self._open: dict[int, ServicePortListener] = {}
        # Listeners that only accept what is in their queue, and when each was retired.
        self._shut: dict[int, tuple[ServicePortListener, float]] = {}
        self._sockets: Counter[ServiceKey] = Counter()
        self._retired: dict[PortHandler, ServiceKey] = {}
        self._dirty: set[int] = set()
        self._due: dict[int, float] = {}
        # When each port was last logged that more than one Service claims by its status.
        self._logged: dict[int, float] = {}
        self.contested = 0
        """How often a Service claimed a port that another claims."""
        self._something = asyncio.Event()
        self._settled = asyncio.Event()
        self._accepting = True
        self._settled.set()

    def __repr__(self) -> str:
        return (
            f"<ServicePortListeners {len(self._open)} ports, {len(self._retired)} retired handlers>"
        )

    @property
    def ports(self) -> Iterable[int]:
        """The ports that are listened on."""
        return self._open.keys()

    def handlers(self) -> Iterable[tuple[ServiceKey, PortHandler]]:
        """Return every handler that may have connections, with its Service."""
        for listener in self._listeners():
            if listener.handler is not None:
                yield listener.claim.key, listener.handler
        yield from ((key, handler) for handler, key in self._retired.items())

    def touch(self, ports: Iterable[int]) -> None:
        """Decide about ports again."""
        self._dirty.update(ports)
        if self._dirty:
            self._settled.clear()
            self._something.set()

    async def settled(self) -> None:
        """Wait until everything touched so far is bound, closed or refused."""
        await self._settled.wait()

    async def run(self) -> None:
        """Bind and close, until cancelled; closes everything at the end."""
        try:
            while True:
                try:
                    await self._round()
                except Exception:  # noqa: BLE001 -- logged; what listens must outlive any defect
                    _log.exception("changing ports failed; retrying")
                    await asyncio.sleep(_RETRY)
        finally:
            self._close_all()
            for handler in self._retired:
                handler.close()
            self._retired.clear()

    async def _round(self) -> None:
        await self._apply_all()
        await self._close_emptied()
        if not self._accepting or not (self._dirty or self._shut):
            self._settled.set()
        self._retire()
        await self._wait_for_changes()

    def stop_new_handshakes(self) -> None:
        """Refuse new handshakes; connections in the accept queues are still accepted."""
        self._accepting = False
        for listener in self._open.values():
            stop_new_handshakes(listener.sock)

    def stop_accepting(self) -> None:
        """Close every socket; open connections continue."""
        self._accepting = False
        self._close_all()

    def waiting(self) -> int:
        """How many connections are in the accept queue."""
        return sum(listener.waiting() for listener in self._listeners())

    def _listeners(self) -> Iterable[ServicePortListener]:
        yield from self._open.values()
        yield from (listener for listener, _ in self._shut.values())

    async def _wait_for_changes(self) -> None:
        now = asyncio.get_running_loop().time()
        due = min(self._due.values(), default=now + _RETIRE_EVERY)
        if self._shut:
            due = min(due, now + HANDSHAKE)
        try:
            async with asyncio.timeout(max(min(due - now, _RETIRE_EVERY), 0)):
                await self._something.wait()
        except TimeoutError:
            pass
        self._something.clear()
        now = asyncio.get_running_loop().time()
        for port in [port for port, due in self._due.items() if due <= now]:
            del self._due[port]
            self._dirty.add(port)

    async def _apply_all(self) -> None:
        while self._dirty and self._accepting:
            port = self._dirty.pop()
            self._due.pop(port, None)
            try:
                await self._apply(port)
            except Exception:  # noqa: BLE001 -- logged; one port must not keep the others from changing
                _log.exception("changing a port failed; retrying", port=port)
                self._due[port] = asyncio.get_running_loop().time() + _RETRY
            # A bind need not suspend; connections must not wait for ten thousand of them.
            await asyncio.sleep(0)

    async def _apply(self, port: int) -> None:
        now = asyncio.get_running_loop().time()
        decision = self.claims.decide(port, now=now)
        if decision.recheck_at is not None:
            self._due[port] = decision.recheck_at
        self._note_rivals(port, decision.claim, now)
        listener = self._open.get(port)
        claim = decision.claim
        if listener is not None and (claim is None or claim.key != listener.claim.key):
            del self._open[port]
            stop_new_handshakes(listener.sock)
            self._shut[port] = (listener, now)
            self._settled.clear()
        if claim is None or port in self._shut:
            # A port that is shut is decided about again when it is closed.
            return
        if listener is None:
            await self._bind(port, claim)
        elif claim != listener.claim:
            self._retire_handler(listener)
            listener.claim = claim

    def _note_rivals(self, port: int, claim: PortClaim | None, now: float) -> None:
        """Count and log a port that is contested: its owner is served, but someone's status is wrong."""
        rivals = self.claims.new_rivals(port)
        if not rivals:
            return
        self.contested += 1
        if now - self._logged.get(port, -_LOG_EVERY) >= _LOG_EVERY:
            self._logged[port] = now
            _log.warning(
                "port is contested",
                port=port,
                served=str(claim.key) if claim is not None else None,
                rivals=sorted(map(str, itertools.islice(rivals, _MOST_NAMED))),
                remedy="find out who writes the status of the rivals' ElastiServices",
            )

    async def _bind(self, port: int, claim: PortClaim) -> None:
        try:
            self._open[port] = await self._listen(port, claim)
            self._sockets[claim.key] += 1
            self._count()
        except OSError as error:
            _log.warning(
                "port cannot be bound", port=port, service=str(claim.key), error=str(error)
            )
            self._due[port] = asyncio.get_running_loop().time() + _RETRY

    async def _listen(self, port: int, claim: PortClaim) -> ServicePortListener:
        sock = bound_socket(self.host, port, reuse_port=self.reuse_port)
        quota = self.path.quotas.of(claim.key)
        listener = ServicePortListener(claim, sock, make_handler=self._make_handler, quota=quota)
        try:
            listener.server = Acceptor(listener, sock, listener.brief_poll)
        except BaseException:
            quota.close()
            sock.close()
            raise
        return listener

    def _make_handler(self, claim: PortClaim) -> PortHandler:
        return self.path.handler(self.upstream(claim), claim.protocol, owner=claim.key)

    async def _close_emptied(self) -> None:
        """Close the stopped sockets whose accept queues are empty."""
        now = asyncio.get_running_loop().time()
        for port, (listener, since) in list(self._shut.items()):
            # One that was accepted in this iteration of the loop gets its protocol in the next.
            is_empty = not listener.waiting()
            await asyncio.sleep(0)
            is_empty = is_empty and not listener.waiting()
            if now - since < (HANDSHAKE if is_empty else _PATIENCE):
                continue
            if self._shut.pop(port, None) is not None:
                self._close(listener)
                self.touch([port])

    def _close_all(self) -> None:
        for listener in list(self._listeners()):
            self._close(listener)
        self._open.clear()
        self._shut.clear()

    def _close(self, listener: ServicePortListener) -> None:
        if listener.server is not None:
            listener.server.close()
        self._retire_handler(listener)
        listener.quota.close()
        key = listener.claim.key
        self._sockets[key] -= 1
        self._count()
        if not self._sockets[key]:
            del self._sockets[key]
            self.closed(key)

    def _count(self) -> None:
        """Descriptors of listening sockets are not available to connections."""
        self.path.quotas.leave_for_listening(len(self._open) + len(self._shut))

    def _retire_handler(self, listener: ServicePortListener) -> None:
        if listener.handler is not None:
            self._retired[listener.handler] = listener.claim.key
            listener.handler = None

    def _retire(self) -> None:
        """Drop handlers without connections."""
        for listener in self._open.values():
            if listener.handler is not None and not listener.handler.connections:
                self._retire_handler(listener)
        for handler in [f for f in self._retired if not f.connections]:
            del self._retired[handler]
            handler.close()
