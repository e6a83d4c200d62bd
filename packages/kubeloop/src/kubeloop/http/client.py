"""Single HTTP/1.1 requests on kept connections, strict and small.

    async with HttpClient() as http, http.request("GET", url, timeout=5.0) as answer:
        body = await answer.body(limit=1 << 20)

A connection is kept for the next request to the same origin if its answer was complete and
nothing came after it, and 500 at most are. One that turns out to be closed may have carried the request to
its end, so only a GET is sent again, once, on a new connection, and only if not a byte of an answer has come.
Redirects are not followed, no cookies are kept, nothing is unpacked, and no environment variable is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol, Self, TypeAlias
from urllib.parse import quote, urlsplit

from kubeloop.aio.keepalive import Keepalive
from kubeloop.http.connection import Connection
from kubeloop.http.framing import FramingError, HttpResponseHead

HeaderLines: TypeAlias = tuple[tuple[str, str], ...]

# Below the shortest idle timeout of servers and load balancers in common use (a minute), so that a
# request seldom meets a connection that the other side is just closing.
KEEP = 30.0
_CONNECT_TIMEOUT = 10.0
# How many connections wait for their next request: with TLS, one takes 85 KiB.
_MOST_IDLE = 500
_BUFFER = 16 * 1024
_KEEPALIVE = Keepalive(idle=30, interval=5, probes=3, bounds_sending=True)
_BREAK = re.compile("[\\r\\n\\0]")
_ERRNO = re.compile(r"\[Errno (\d+)\]")
# Characters of a target that stay unchanged; "%" too, since it may be quoted already.
_TARGET = "/?%&=:@!$'()*+,;~[]"


class ConnectFailed(ConnectionError):
    """No connection was made, so nothing was sent. `cause` is the system's error, or a TimeoutError."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class AnswerTooLong(Exception):
    """The body has no end, or one that is too far away."""


class Origin(Protocol):
    """A server that connections are kept to, by equality."""

    def __hash__(self) -> int:
        """As equality."""

    async def connect(self, connection: Connection) -> None:
        """Connect, and attach the connection. Raises OSError, and what the client's user knows of."""


@dataclasses.dataclass(frozen=True, slots=True)
class UrlOrigin:
    """The server of a URL; `check` raises OSError for an address that must not be connected to."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    check: Callable[[str, int], None] | None = None
    server_name: str = ""

    async def connect(self, connection: Connection) -> None:
        """Connect to the first address that takes the connection. Raises OSError."""
        name = self.server_name or self.host
        if self.check is None:
            await open_connection(connection, self.host, self.port, self.tls, name)
            return
        loop, failed = asyncio.get_running_loop(), OSError("the name has no address")
        for *_, address in await loop.getaddrinfo(self.host, self.port, type=1):
            try:
                self.check(str(address[0]), self.port)
                await open_connection(connection, str(address[0]), self.port, self.tls, name)
                return
            except OSError as error:
                failed = error
        raise failed


class Answer:
    """An answer that has begun."""

    def __init__(self, connection: Connection, head: HttpResponseHead) -> None:
        self.connection = connection
        self.head = head
        self.status = head.status

    def header(self, name: str) -> str:
        """Return a field's first value by its lower-case name, empty if it is absent."""
        return next(iter(self.head.values(name)), "")

    async def pieces(self, *, limit: int) -> AsyncIterator[bytes]:
        """Iterate over the body to its end. Raises AnswerTooLong, OSError and FramingError."""
        left = limit
        while data := await self.connection.read():
            left -= len(data)
            if left < 0:
                raise AnswerTooLong(f"the answer is longer than {limit / (1 << 20):g} MiB")
            yield data
        if not self.connection.complete:
            error = self.connection.error
            raise error or ConnectionResetError("closed in the middle of the answer")

    async def body(self, *, limit: int) -> bytes:
        """Read the body to its end. Raises as `pieces`."""
        return b"".join([piece async for piece in self.pieces(limit=limit)])


class HttpClient:
    """Requests and their kept connections, until `aclose`.

    `limit`: how many requests are under way at once, 0 for any number; `keep`: for how many seconds a connection
    waits for the next one; `most_idle`: how many wait; `check` raises OSError for an address that URLs must not lead to.
    """

    def __init__(
        self,
        *,
        keep: float = KEEP,
        limit: int = 0,
        most_idle: int = _MOST_IDLE,
        connect_timeout: float = _CONNECT_TIMEOUT,
        check: Callable[[str, int], None] | None = None,
    ) -> None:
        self._keep = keep
        self._most_idle = most_idle
        self._gate = asyncio.Semaphore(limit or 1 << 30)
        self._connect_timeout = connect_timeout
        self._check = check
        self._idle: dict[Origin, list[tuple[float, Connection]]] = {}
        self._busy: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._default_tls: ssl.SSLContext | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    def request(
        self,
        method: str,
        url: str,
        *,
        timeout: float | None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
    ) -> contextlib.AbstractAsyncContextManager[Answer]:
        """Send a request; the answer is to be read inside the block, which may last for `timeout`.

        `server_name` is what the certificate must be for, if that is not the URL's host.
        Raises ConnectFailed, other OSErrors (TimeoutError), FramingError; ValueError for a URL or header that
        cannot be sent.
        """
        parts = urlsplit(url)
        if parts.scheme == "https" and tls is None:
            tls = self._default_tls = self._default_tls or ssl.create_default_context()
        port = parts.port or (443 if parts.scheme == "https" else 80)
        secured = tls if parts.scheme == "https" else None
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        fields = {"Host": parts.netloc.rpartition("@")[2]} | dict(headers or {})
        request = request_bytes(method, quote(target, safe=_TARGET), tuple(fields.items()), body)
        origin = UrlOrigin(parts.hostname or "", port, secured, self._check, server_name)
        return self.exchange(origin, request, timeout=timeout)

    @contextlib.asynccontextmanager
    async def exchange(
        self, origin: Origin, request: bytes, *, timeout: float | None
    ) -> AsyncIterator[Answer]:
        """Send the bytes of a request to an origin. As `request`, and raises what `origin` raises."""
        async with asyncio.timeout(timeout), self._gate:
            connection = await self._kept(origin)
            is_repeatable = connection is not None and request.startswith(b"GET ")
            connection = connection or await self._connect(origin)
            try:
                try:
                    head = await _head_of(connection, request)
                except OSError:
                    if not is_repeatable or connection.begun or self._closed:
                        raise
                    await self._drop(connection)
                    connection = await self._connect(origin)
                    head = await _head_of(connection, request)
                yield Answer(connection, head)
            finally:
                await self._release(origin, connection)

    async def aclose(self) -> None:
        """Close every connection. Safe to repeat."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        idle = [connection for kept in self._idle.values() for _, connection in kept]
        self._idle.clear()
        for connection in (*idle, *self._busy):
            await connection.close()

    async def _kept(self, origin: Origin) -> Connection | None:
        if self._closed:
            raise RuntimeError("the client is closed: use it inside its `async with` block")
        kept = self._idle.get(origin, [])
        while kept:
            until, connection = kept.pop()
            if connection.reusable and asyncio.get_running_loop().time() < until:
                connection.begin()
                self._busy.add(connection)
                return connection
            await connection.close()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        connection = Connection(buffer=_BUFFER)
        self._busy.add(connection)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await origin.connect(connection)
            connection.established()
        except BaseException as error:
            await self._drop(connection)
            if isinstance(error, OSError):
                raise ConnectFailed(error) from error
            raise
        return connection

    async def _drop(self, connection: Connection) -> None:
        self._busy.discard(connection)
        await connection.close()

    async def _release(self, origin: Origin, connection: Connection) -> None:
        idle = sum(map(len, self._idle.values()))
        if self._closed or not self._keep or not connection.reusable or idle >= self._most_idle:
            await self._drop(connection)
            return
        self._busy.discard(connection)
        loop = asyncio.get_running_loop()
        self._idle.setdefault(origin, []).append((loop.time() + self._keep, connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keep, self._sweep)

    def _sweep(self) -> None:
        """Close what has waited for too long; the timer runs only while anything waits."""
        loop, self._sweeper = asyncio.get_running_loop(), None
        for origin, kept in list(self._idle.items()):
            for until, connection in kept:
                if until <= loop.time() or not connection.reusable:
                    connection.abort()
            self._idle[origin] = [(until, one) for until, one in kept if one.reusable]
            if not self._idle[origin]:
                del self._idle[origin]
        if ends := [until for kept in self._idle.values() for until, _ in kept]:
            self._sweeper = loop.call_at(min(ends), self._sweep)


async def _head_of(connection: Connection, request: bytes) -> HttpResponseHead:
    connection.expects_body = not request.startswith(b"HEAD ")
    connection.write(request)
    head = await connection.head()
    if head.status == 101:
        raise FramingError("the server switches protocols, which was not asked for")
    return head


def request_bytes(method: str, target: str, fields: HeaderLines, body: bytes | None) -> bytes:
    """Write a request. Raises ValueError for a target or field that would be another request."""
    line = f"{method} {target} HTTP/1.1"
    length = () if body is None else (("Content-Length", str(len(body))),)
    lines = [line, *(f"{name}: {value}" for name, value in (*fields, *length))]
    for text in lines:
        if _BREAK.search(text):
            raise ValueError(f"{text.split(':')[0]!r} holds a line break: not a valid request")
    if line.count(" ") != 2:
        raise ValueError(f"{line!r} holds a space in its path: not a valid request")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (body or b"")


async def open_connection(
    protocol: asyncio.BaseProtocol,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    server_name: str,
) -> asyncio.Transport:
    """Connect, and attach a protocol; the kernel notices a peer that vanishes. Raises OSError."""
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol, host, port, ssl=tls, server_hostname=server_name if tls else None
        )
    except OSError as error:
        # If a name has several addresses, asyncio reports all their failures in one text.
        if set(_ERRNO.findall(str(error))) == {str(errno.ECONNREFUSED)}:
            raise ConnectionRefusedError(errno.ECONNREFUSED, str(error)) from error
        raise
    if (sock := transport.get_extra_info("socket")) is not None:
        _KEEPALIVE.enable(sock)
    return transport
