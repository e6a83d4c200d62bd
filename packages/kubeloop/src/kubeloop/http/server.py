"""A small hardened HTTP/1.1 server, for probes, metrics, admin ports and the like.

Inside a cluster every pod can connect to a port that must be open for probes, so connections have limits
(`ConnectionLimits`):

- A new connection has a few seconds to send a complete request head; so has each further request
  on it, counted from its first byte. A body has as long, and the response is made and sent within a
  minute, or its handler is cancelled.
- Between two requests a connection may be idle for a minute.
- The number of connections is bounded. One more than the bound replaces the oldest connection that waits
  for its client: for a whole request, or for the answer to be read. It also replaces one whose client has left,
  or whose handler gave its place up (`Request.yield_place`), but no other whose request is being handled. Clients
  that hold connections and send nothing, send a body slowly or do not read therefore displace each other, and never
  a client that sends a request. Between two requests that came at once, others have a turn.
- At most sixteen connections keep a long body that is not whole; the oldest makes room for one more.

Requests are read by the grammar of `kubeloop.http.framing`; what it refuses is answered with 400, and the
connection closed. A request is handled when all of it has come. A client may close its own direction after it
and still gets the answer (TLS has no such thing). With TLS, a handshake has as long as a head, and counts as
a connection when it is done. With `optional_tls` a port has both: a client that begins with a handshake gets TLS,
any other is answered in the clear, and `Request.is_secure` tells them apart. There a handshake counts from its start.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import dataclasses
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import parse_qs, unquote

from kubeloop.aio.clock import SystemClock
from kubeloop.aio.tasks import finish
from kubeloop.http.framing import (
    ChunkedFraming,
    FramingError,
    HttpRequestHead,
    SizedFraming,
    parse_request_head,
)

if TYPE_CHECKING:
    import ssl

Handler: TypeAlias = Callable[["Request"], Awaitable["Response"]]

TEXT = "text/plain; charset=utf-8"
_MAX_HEAD = 16 * 1024
_MAX_BODY = 64 * 1024
_MAX_PARAMETERS = 100
# How many connections may keep more than `_MAX_BODY` of bodies that are not whole.
_MOST_LONG = 16
_READ = 16 * 1024
# Seconds for a client to take its refusal while it still sends: with bytes unread the kernel would reset the
# connection, and the client might lose the answer.
_LINGER = 2.0
_BODILESS = frozenset((204, 304))
# The first byte of a TLS handshake, which no method of HTTP begins with.
_HANDSHAKE = 0x16
_PHRASES = {status.value: status.phrase for status in HTTPStatus}

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Seconds for a head or a body, between requests and for an answer; and how many connections."""

    head: float = 10.0
    idle: float = 60.0
    answer: float = 60.0
    connections: int = 512


@dataclasses.dataclass(slots=True)
class Response:
    """An answer; a body that is iterated over is sent as it comes."""

    status: int = 200
    body: bytes | AsyncGenerator[bytes, None] = b""
    content_type: str = TEXT
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


class HttpError(Exception):
    """A request is refused, with a status and a text."""

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = dict(headers or {})


class Request:
    """A whole request; `arguments` are the parts of its path that a route names."""

    def __init__(
        self, head: HttpRequestHead, body: bytes = b"", connection: _ServerConnection | None = None
    ) -> None:
        self.method, self.target = head.method, head.target
        self.is_secure = connection is not None and connection.is_secure
        self.path, _, query = head.target.partition("?")
        self.body = body
        self.arguments: dict[str, str] = {}
        self._head, self._connection = head, connection
        try:
            self.query = parse_qs(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS)
        except ValueError:
            raise FramingError(f"a query of more than {_MAX_PARAMETERS} parameters") from None

    def header(self, name: str) -> str | None:
        """Return a field's first value by its lower-case name."""
        return next(iter(self._head.values(name)), None)

    def parameter(self, name: str, default: str = "") -> str:
        """Return the first value of a parameter of the query."""
        return self.query.get(name, [default])[0]

    def yield_place(self) -> None:
        """Let another connection replace this one from now on: it is not known who asks."""
        if self._connection is not None:
            self._connection.yield_place()

    def keep_place(self) -> None:
        """Take that back."""
        if self._connection is not None:
            self._connection.keep_place()


class Router:
    """Handles requests by method and path: `{"GET /healthz/{check}": handler}`. HEAD is as GET.

    `yields`: their connections yield their places, as any client may ask.
    """

    def __init__(self, routes: Mapping[str, Handler], *, yields: bool = False) -> None:
        self._yields = yields
        self._routes: dict[re.Pattern[str], dict[str, Handler]] = {}
        for route, handler in routes.items():
            method, _, path = route.partition(" ")
            pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
            methods = self._routes.setdefault(re.compile(pattern), {})
            methods |= {method: handler} | ({"HEAD": handler} if method == "GET" else {})

    async def __call__(self, request: Request) -> Response:
        """Handle a request. Raises HttpError."""
        if self._yields:
            request.yield_place()
        for pattern, methods in self._routes.items():
            if (found := pattern.fullmatch(request.path)) is None:
                continue
            if request.method not in methods:
                raise HttpError(405, "method not allowed\n", {"Allow": ", ".join(methods)})
            request.arguments = {name: unquote(part) for name, part in found.groupdict().items()}
            return await methods[request.method](request)
        raise HttpError(404, "not found\n")


class HttpServer:
    """Serves requests, from `open` to `close`."""

    def __init__(
        self,
        handler: Handler,
        limits: ConnectionLimits | None = None,
        *,
        max_body: int = _MAX_BODY,
        shutdown_timeout: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`headers` are part of every answer, refusals of what is not HTTP included."""
        self.handler = handler
        self.headers = dict(headers or {})
        self.limits = limits or ConnectionLimits()
        self.max_body = max_body
        self.optional_tls: Callable[[], ssl.SSLContext | None] | None = None
        self._shutdown_timeout = shutdown_timeout
        self._connections: dict[_ServerConnection, None] = {}  # the oldest first
        self._waiting: set[_ServerConnection] = set()
        self._server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.is_closing = False
        # One for all: what is read into it is taken out before the loop turns to another connection.
        self.read_buffer = memoryview(bytearray(_READ))

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def port(self) -> int:
        """The port that it listens on. Raises RuntimeError if it does not."""
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the server does not listen yet")
        return int(self._server.sockets[0].getsockname()[1])

    async def open(
        self,
        host: str | None = None,
        port: int = 0,
        *,
        path: str = "",
        tls: ssl.SSLContext | None = None,
        optional_tls: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        """Listen on a port, 0 for any free one, or on a Unix socket; `tls` is for ports.

        `optional_tls` is asked at each handshake; with None from it, the handshake is refused like any bad request.
        """
        loop = asyncio.get_running_loop()
        self.optional_tls = optional_tls
        if path:
            self._server = await loop.create_unix_server(self.connection, path)
        else:
            patience = self.limits.head if tls else None
            self._server = await loop.create_server(
                self.connection,
                host,
                port,
                backlog=1024,
                ssl=tls,
                ssl_handshake_timeout=patience,
                ssl_shutdown_timeout=patience,
            )

    def connection(self) -> asyncio.BufferedProtocol:
        """Return the protocol of a new connection."""
        return _ServerConnection(self)

    async def close(self) -> None:
        """Stop accepting connections, and answer the requests under way. Safe to repeat."""
        self.is_closing = True
        if self._server is not None:
            self._server.close()
        for connection in [one for one in self._connections if one.task is None]:
            connection.drop()
        if serving := set(self.tasks):
            await asyncio.wait(serving, timeout=self._shutdown_timeout)
            await finish(serving)
        for connection in list(self._connections):
            connection.drop()
        await asyncio.sleep(0)  # the loop frees their sockets

    # What connections report

    def accepted(self, connection: _ServerConnection) -> None:
        """A connection was accepted."""
        self._connections[connection] = None
        if len(self._connections) > self.limits.connections:
            next((one for one in self._connections if one in self._waiting), connection).drop()

    def awaits_client(self, connection: _ServerConnection) -> None:
        """A connection waits from now on: for a whole request, or for the client to read."""
        if connection in self._connections:
            self._waiting.add(connection)

    def is_served(self, connection: _ServerConnection) -> None:
        """A whole request has come on a connection, or its client reads on."""
        self._waiting.discard(connection)

    def keeps_much(self) -> None:
        """A long body grows on a connection: of too many that are not whole, the oldest ends."""
        long = [one for one in self._connections if one.is_long and one in self._waiting]
        if len(long) > _MOST_LONG:
            long[0].drop()

    def closed(self, connection: _ServerConnection) -> None:
        """A connection is closed, or about to be."""
        self._connections.pop(connection, None)
        self._waiting.discard(connection)


class _ServerConnection(asyncio.BufferedProtocol):
    """One connection: reads a request, has it handled, sends the answer, and keeps the time."""

    def __init__(self, owner: HttpServer) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._buffer = bytearray()
        self._head: HttpRequestHead | None = None
        self._framing: SizedFraming | ChunkedFraming = SizedFraming(0)
        self._chunks = bytearray()
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._is_idle = self._is_parting = self._at_eof = self._is_streaming = False
        self._is_new, self.is_secure, self.is_long = True, False, False
        self.task: asyncio.Task[None] | None = None

    def drop(self) -> None:
        """End the connection now, and what is done for it."""
        self.forget()
        self._transport.abort()
        if self.task is not None:
            self.task.cancel()

    def yield_place(self) -> None:
        """Let another connection replace this one."""
        self._owner.awaits_client(self)

    def keep_place(self) -> None:
        """Take that back."""
        self._owner.is_served(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.is_secure = transport.get_extra_info("ssl_object") is not None
        self._owner.accepted(self)
        if not self._transport.is_closing():
            self._owner.awaits_client(self)
            self._set_deadline(self._limits.head, self.drop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._may_write.set()
        if self.task is None:
            self.forget()
        else:  # a handler keeps its deadline, and counts until it ends
            self._owner.awaits_client(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._owner.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_parting:
            return
        data = self._owner.read_buffer[:nbytes]
        if self._is_new:
            self._is_new = False
            wanted = self._owner.optional_tls if data[0] == _HANDSHAKE else None
            if wanted is not None and (context := wanted()) is not None:
                self._secure(context, bytes(data))
                return
        self._buffer += data
        self._received()
        self.is_long = len(self._buffer) + len(self._chunks) > _MAX_BODY
        if self.is_long:
            self._owner.keeps_much()

    def _secure(self, context: ssl.SSLContext, data: bytes) -> None:
        """Speak TLS from here on; these bytes began it. Then `connection_made` is called again."""
        layer = _TlsLayer(context, self, self._limits.head)
        self._transport.set_protocol(layer)
        layer.connection_made(self._transport)
        layer.get_buffer(len(data))[: len(data)] = data
        layer.buffer_updated(len(data))

    def eof_received(self) -> bool:
        self._at_eof = True
        # A stream has no end to wait for, so its client has rather left; TLS has no half-closed connections.
        may_read_on = not self._is_streaming and self._transport.can_write_eof()
        has_more = self._is_idle and len(self._buffer) > 0
        return (self.task is not None or has_more) and may_read_on

    def _received(self) -> None:
        if self.task is not None:
            # Read on a little, so that a client that leaves is noticed.
            if len(self._buffer) > _MAX_HEAD:
                self._transport.pause_reading()
            return
        if self._is_idle:
            self._is_idle = False
            self._set_deadline(self._limits.head, self.drop)
        self._advance()

    def pause_writing(self) -> None:
        self._may_write.clear()
        self._owner.awaits_client(self)

    def resume_writing(self) -> None:
        self._may_write.set()
        self._owner.is_served(self)

    def _advance(self) -> None:
        """Handle the next request if all of it is there."""
        try:
            if self._head is None and not self._take_head():
                return
            body = self._take_body()
            if body is None:
                return
            assert self._head is not None
            request = Request(self._head, body, self)
        except FramingError as error:
            self._refuse(HttpError(400, f"{error}\n"))
        except HttpError as error:
            self._refuse(error)
        else:
            self._start(lambda: self._owner.handler(request))

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n", 0, _MAX_HEAD)
        if end < 0:
            if len(self._buffer) >= _MAX_HEAD:
                raise HttpError(431, f"the head is longer than {_MAX_HEAD} bytes\n")
            return False
        self._head = head = parse_request_head(bytes(self._buffer[: end + 2]))
        del self._buffer[: end + 4]
        self._framing, self._chunks = head.body(), bytearray()
        late = HttpError(408, "the body did not come in time\n")
        self._set_deadline(self._limits.head, lambda: self._refuse(late))
        if isinstance(self._framing, SizedFraming) and self._framing.size > self._owner.max_body:
            raise HttpError(413, f"the body is longer than {self._owner.max_body} bytes\n")
        if head.minor and (expected := head.values("expect")):
            if [value.lower() for value in expected] != ["100-continue"]:
                raise HttpError(417, "the only expectation supported is 100-continue\n")
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _take_body(self) -> bytes | None:
        if isinstance(self._framing, SizedFraming):
            if len(self._buffer) < (size := self._framing.size):
                return None
            body = bytes(self._buffer[:size])
            del self._buffer[:size]
            return body
        for piece in self._framing.feed(memoryview(bytes(self._buffer))):
            self._chunks += piece
        self._buffer.clear()
        if len(self._chunks) > self._owner.max_body:
            raise HttpError(413, f"the body is longer than {self._owner.max_body} bytes\n")
        return bytes(self._chunks) if self._framing.finished else None

    def _refuse(self, error: HttpError) -> None:
        """Answer what was not read to its end, or not well-formed: nothing after it can be trusted."""
        self._head = None
        self._start(lambda: _failed(error))

    def _start(self, answer: Callable[[], Awaitable[Response]]) -> None:
        self._chunks = bytearray()  # the request has it
        self._owner.is_served(self)
        self._set_deadline(self._limits.answer, self.drop)
        self.task = asyncio.create_task(self._serve(answer), name="http request")
        self._owner.tasks.add(self.task)
        self.task.add_done_callback(self._owner.tasks.discard)

    async def _serve(self, answer: Callable[[], Awaitable[Response]]) -> None:
        head = self._head
        try:
            response = await answer()
        except HttpError as error:
            response = Response(error.status, str(error).encode(), headers=error.headers)
        except Exception:  # noqa: BLE001 -- a handler may raise anything
            _log.exception("request failed: %s", head and f"{head.method} {head.target}")
            response = Response(500, b"internal error\n")
        overrun = self._framing.overrun or self._owner.is_closing
        persists = head is not None and head.persists and not overrun
        try:
            if not self._transport.is_closing():
                persists = await self._send(response, head, persists=persists) and persists
        except Exception:  # noqa: BLE001 -- a handler may raise anything
            _log.exception("answer failed: %s", head and f"{head.method} {head.target}")
            self._transport.abort()
        finally:
            self.task = self._head = None
        if self._transport.is_closing():
            self.forget()
        elif persists:
            self._await_next()
        elif head is None or overrun:
            self._part()
        else:
            self._transport.close()

    def _await_next(self) -> None:
        self._is_idle = True
        self._owner.awaits_client(self)
        self._set_deadline(self._limits.idle, self.drop)
        # Not at once, since others have a turn before requests that were sent ahead.
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport.is_closing():
            return
        if self._buffer:
            self._received()
        if self.task is None or len(self._buffer) <= _MAX_HEAD:
            self._transport.resume_reading()
        if self._at_eof and self.task is None:
            self._transport.close()

    def _part(self) -> None:
        """End the sending side, and let the client read all of it before the connection ends."""
        if self._at_eof or self._owner.is_closing:
            self._transport.close()
            return
        self._is_parting = True
        self._buffer.clear()
        self._owner.awaits_client(self)
        self._set_deadline(_LINGER, self.drop)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()

    async def _send(
        self, response: Response, head: HttpRequestHead | None, *, persists: bool
    ) -> bool:
        """Send an answer; return whether its end is known without closing the connection."""
        body, phrase = response.body, _PHRASES.get(response.status, "")
        is_bodiless = response.status in _BODILESS
        fields = {"Content-Type": response.content_type} | response.headers | self._owner.headers
        fields["Date"] = SystemClock().now().strftime("%a, %d %b %Y %H:%M:%S GMT")
        chunked = not isinstance(body, bytes) and head is not None and head.minor == 1
        if is_bodiless:
            chunked = False
        elif isinstance(body, bytes):
            fields["Content-Length"] = str(len(body))
        elif chunked:
            fields["Transfer-Encoding"] = "chunked"
        if not persists:
            fields["Connection"] = "close"
        elif head is not None and head.minor == 0:
            fields["Connection"] = "keep-alive"
        lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{k}: {v}" for k, v in fields.items())]
        if any(char in line for line in lines for char in "\r\n\0"):
            raise ValueError("a header field of the answer holds a line break")
        wire = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        has_body = not is_bodiless and (head is None or head.method != "HEAD")
        if isinstance(body, bytes):
            self._transport.write(wire + body if has_body else wire)
            await self._may_write.wait()
            return True
        self._transport.write(wire)
        async with contextlib.aclosing(body):
            if has_body:
                await self._send_pieces(body, chunked=chunked)
        return chunked or is_bodiless

    async def _send_pieces(self, body: AsyncGenerator[bytes, None], *, chunked: bool) -> None:
        self._is_streaming = True
        async for piece in body:
            if self._transport.is_closing():
                return
            if piece:  # an empty chunk would be the last one
                self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                await self._may_write.wait()
        self._is_streaming = False
        if chunked and not self._transport.is_closing():
            self._transport.write(b"0\r\n\r\n")

    def forget(self) -> None:
        """Count it no longer."""
        self._owner.closed(self)
        if self._timer is not None:
            self._timer.cancel()

    def _set_deadline(self, seconds: float, end: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, end)


class _TlsLayer(asyncio.sslproto.SSLProtocol):
    """TLS under a connection that has already read: a loop upgrades only a connection that has not."""

    def __init__(
        self, context: ssl.SSLContext, connection: _ServerConnection, patience: float
    ) -> None:
        # The types of the standard library know neither floats nor that nothing need wait.
        options: Any = {
            "waiter": None,
            "server_side": True,
            "ssl_handshake_timeout": patience,
            "ssl_shutdown_timeout": patience,
        }
        super().__init__(asyncio.get_running_loop(), connection, context, **options)
        self._connection = connection

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        # A handshake that failed is not reported to the connection.
        if self._connection.task is None:
            self._connection.forget()


async def _failed(error: HttpError) -> Response:
    raise error
