"""The sockets: one for each resolver port, bound and closed as Services come and go.

One task changes them, one port after the other, so that a thousand Services that appear at once do
not stall the connections that are served. A listener's protocol may change (the Service says `http`
now) without closing its socket. A port that changes its owner is closed first; connections of the old
owner end by themselves, also those that were not accepted yet: a socket is shut, emptied, and only
then closed.

With several workers each binds the same ports with SO_REUSEPORT, and the kernel divides connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from elasti.resolver.doors import HANDSHAKE, bound_socket, not_accepted, shut
from elasti.resolver.greeting import GreetedConnection
from elasti.resolver.proxy.ports import PortProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from elasti.resolver.claims import Claim, PortClaims
    from elasti.resolver.objects import ServiceKey
    from elasti.resolver.proxy.front import DataPath, Front
    from elasti.resolver.proxy.reading import Reading
    from elasti.resolver.proxy.target import Target

BACKLOG = 4096
_RETRY = 1.0
_RETIRE_EVERY = 5.0
# How long a socket that is to be closed waits for its connections to be accepted.
_PATIENCE = 5.0

_log = logging.getLogger(__name__)


class Listener:
    """One port: its socket, and the front that makes protocols for its connections.

    The front is made for the first connection and goes a while after the last: most Services have
    none for most of the time, and what is shared out is shared among those that do.
    """

    __slots__ = ("_make_front", "claim", "front", "server", "sock")

    def __init__(
        self, claim: Claim, sock: socket.socket, *, make_front: Callable[[Claim], Front]
    ) -> None:
        self.claim = claim
        self.sock = sock
        self.front: Front | None = None
        self.server: asyncio.AbstractServer | None = None
        self._make_front = make_front

    def __call__(self) -> Reading:
        """Return the protocol for a connection that is being accepted."""
        front = self.front
        if front is None:
            front = self.front = self._make_front(self.claim)
        # A request's first line shows a probe on the other ports.
        if front.protocol not in (PortProtocol.TCP, PortProtocol.TLS):
            return front()
        return GreetedConnection(self.claim.key, front) if front.admits() else front.refuse()

    def waiting(self) -> int:
        """How many connections the kernel holds that were not accepted yet."""
        return not_accepted(self.sock)


class Listeners:
    """All listening sockets of one worker. `target` gives the target of a claim.

    `closed` hears of a Service whose last socket was closed.
    """

    def __init__(
        self,
        *,
        path: DataPath,
        claims: PortClaims,
        target: Callable[[Claim], Target],
        host: str | None = None,
        reuse_port: bool = False,
        closed: Callable[[ServiceKey], None] = lambda _key: None,
    ) -> None:
        self._path = path
        self._claims = claims
        self._target = target
        self._host = host
        self._reuse_port = reuse_port
        self._closed = closed
        self._open: dict[int, Listener] = {}
        # Listeners that take in who has come already, and since when.
        self._shut: dict[int, tuple[Listener, float]] = {}
        self._sockets: Counter[ServiceKey] = Counter()
        self._retired: dict[Front, ServiceKey] = {}
        self._dirty: set[int] = set()
        self._due: dict[int, float] = {}
        self._something = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._accepting = True

    def __repr__(self) -> str:
        return f"<Listeners {len(self._open)} ports, {len(self._retired)} retired fronts>"

    @property
    def ports(self) -> Iterable[int]:
        """The ports that are listened on."""
        return self._open.keys()

    def fronts(self) -> Iterable[tuple[ServiceKey, Front]]:
        """Return every front that may have connections, with its Service."""
        for listener in self._listeners():
            if listener.front is not None:
                yield listener.claim.key, listener.front
        yield from ((key, front) for front, key in self._retired.items())

    def touch(self, ports: Iterable[int]) -> None:
        """Judge ports anew."""
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
                    _log.exception("ports cannot be changed; that is tried again")
                    await asyncio.sleep(_RETRY)
        finally:
            self._close_all()
            for front in self._retired:
                front.close()
            self._retired.clear()

    async def _round(self) -> None:
        await self._apply_all()
        await self._close_emptied()
        if not self._accepting or not (self._dirty or self._shut):
            self._settled.set()
        self._retire()
        await self._rest()

    def shut(self) -> None:
        """Let nobody else come; whoever has come is accepted."""
        self._accepting = False
        for listener in self._open.values():
            shut(listener.sock)

    def stop_accepting(self) -> None:
        """Close every socket; connections go on."""
        self._accepting = False
        self._close_all()

    def waiting(self) -> int:
        """How many connections the kernel holds that were not accepted yet."""
        return sum(listener.waiting() for listener in self._listeners())

    def _listeners(self) -> Iterable[Listener]:
        yield from self._open.values()
        yield from (listener for listener, _ in self._shut.values())

    async def _rest(self) -> None:
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
                _log.exception("port %d cannot be changed; it is tried again", port)
                self._due[port] = asyncio.get_running_loop().time() + _RETRY
            # A bind need not suspend; connections must not wait for ten thousand of them.
            await asyncio.sleep(0)

    async def _apply(self, port: int) -> None:
        now = asyncio.get_running_loop().time()
        verdict = self._claims.judge(port, now=now)
        if verdict.again_at is not None:
            self._due[port] = verdict.again_at
        listener = self._open.get(port)
        claim = verdict.claim
        if listener is not None and (claim is None or claim.key != listener.claim.key):
            del self._open[port]
            shut(listener.sock)
            self._shut[port] = (listener, now)
            self._settled.clear()
        if claim is None or port in self._shut:
            # A port that is shut is judged again when it is closed.
            return
        if listener is None:
            await self._bind(port, claim)
        elif claim != listener.claim:
            self._retire_front(listener)
            listener.claim = claim

    async def _bind(self, port: int, claim: Claim) -> None:
        try:
            self._open[port] = await self._listen(port, claim)
            self._sockets[claim.key] += 1
            self._count()
        except OSError as error:
            _log.warning("port %d cannot be bound for %s: %s", port, claim.key, error)
            self._due[port] = asyncio.get_running_loop().time() + _RETRY

    async def _listen(self, port: int, claim: Claim) -> Listener:
        sock = bound_socket(self._host, port, reuse_port=self._reuse_port)
        listener = Listener(claim, sock, make_front=self._make_front)
        loop = asyncio.get_running_loop()
        try:
            listener.server = await loop.create_server(listener, sock=sock, backlog=BACKLOG)
        except BaseException:
            sock.close()
            raise
        return listener

    def _make_front(self, claim: Claim) -> Front:
        return self._path.front(self._target(claim), claim.protocol, owner=claim.key)

    async def _close_emptied(self) -> None:
        """Close the sockets that were shut, when all who had come are accepted."""
        now = asyncio.get_running_loop().time()
        for port, (listener, since) in list(self._shut.items()):
            # One that was accepted in this turn of the loop gets its protocol in the next.
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

    def _close(self, listener: Listener) -> None:
        if listener.server is not None:
            listener.server.close()
        self._retire_front(listener)
        key = listener.claim.key
        self._sockets[key] -= 1
        self._count()
        if not self._sockets[key]:
            del self._sockets[key]
            self._closed(key)

    def _count(self) -> None:
        """Descriptors that listen are none for connections."""
        self._path.allowances.leave_for_listening(len(self._open) + len(self._shut))

    def _retire_front(self, listener: Listener) -> None:
        if listener.front is not None:
            self._retired[listener.front] = listener.claim.key
            listener.front = None

    def _retire(self) -> None:
        """Let go of fronts that nobody uses: while they are there, others may not have their share."""
        for listener in self._open.values():
            if listener.front is not None and not listener.front.connections:
                self._retire_front(listener)
        for front in [f for f in self._retired if not f.connections]:
            del self._retired[front]
            front.close()
