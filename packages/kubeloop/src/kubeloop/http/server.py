"""A hardened aiohttp server: limits on slow, idle and surplus connections.

aiohttp's own server waits for the rest of a request for as long as a client sends a byte now and
then, and accepts any number of connections. Inside a cluster every pod can connect to a port that
must be open for probes, so `HardenedServer` adds these limits (`ConnectionLimits`):

- A new connection has a few seconds to send a complete request head; so has each further request
  on it, counted from its first byte. A body has as long, and the response is sent within a minute.
- Between two requests a connection may be idle for a minute.
- The number of connections is bounded. One more than the bound replaces the connection that has
  waited longest for its request; a connection whose request is being served is never replaced.
  Clients that hold connections and send nothing therefore displace each other, and never a client
  that sends a request.

aiohttp is imported when a server is started, not when this module is imported.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web


if TYPE_CHECKING:
    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Seconds for a head or a body, between requests and for an answer; and how many connections."""

    head: float = 10.0
    idle: float = 60.0
    answer: float = 60.0
    connections: int = 512


class HardenedServer:
    """Serves an application, from `open` to `close`."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self._limits = limits or ConnectionLimits()
        self._connections: dict[object, _GuardedConnection] = {}
        self._waiting: OrderedDict[_GuardedConnection, None] = OrderedDict()
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def port(self) -> int:
        """The port that it listens on. Raises RuntimeError where it does not."""
        if self._server is None or not self._server.sockets:
            raise RuntimeError("the server does not listen yet")
        return int(self._server.sockets[0].getsockname()[1])

    async def open(
        self, app: web.Application, host: str | None, port: int, *, shutdown_timeout: float = 60.0
    ) -> None:
        """Listen; port 0 takes any free one. `close` is safe, and due, also where this fails."""
        from aiohttp import web  # noqa: PLC0415 -- costs 100 ms, which not every program needs

        app.middlewares.insert(0, self._middleware())
        self._runner = web.AppRunner(
            app,
            access_log=None,
            shutdown_timeout=shutdown_timeout,
            lingering_time=0.0,  # else it goes on reading what was too slow already
        )
        await self._runner.setup()
        protocols = cast("Callable[[], asyncio.Protocol]", self._runner.server)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _GuardedConnection(self, protocols()), host, port, backlog=1024
        )

    async def close(self) -> None:
        """Accept no more connections, and answer the requests that are being served. Safe to repeat."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _middleware(self) -> Any:
        """Return what tells who is being served, and reads the body in time."""
        from aiohttp import web  # noqa: PLC0415 -- as above

        @web.middleware
        async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = self._connections.get(request.protocol)
            if connection is None:  # it is being shut
                raise web.HTTPServiceUnavailable(text="too many connections\n")
            connection.serve()
            try:
                await self._read(request)
                return await handler(request)
            finally:
                connection.response_made()

        return serve

    async def _read(self, request: web.Request) -> None:
        from aiohttp import web  # noqa: PLC0415 -- as above

        try:
            async with asyncio.timeout(self._limits.head):
                await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body did not come in time\n") from None

    # What connections report

    def accepted(self, connection: _GuardedConnection) -> None:
        """A connection was accepted."""
        self._connections[connection.inner] = connection
        if len(self._connections) > self._limits.connections:
            next(iter(self._waiting), connection).drop()

    def awaits_request(self, connection: _GuardedConnection) -> None:
        """A connection waits for a request from now on."""
        self._waiting[connection] = None
        self._waiting.move_to_end(connection)

    def request_begun(self, connection: _GuardedConnection) -> None:
        """A request has come on a connection."""
        self._waiting.pop(connection, None)

    def closed(self, connection: _GuardedConnection) -> None:
        """A connection is closed, or about to be."""
        self._connections.pop(connection.inner, None)
        self._waiting.pop(connection, None)

    @property
    def limits(self) -> ConnectionLimits:
        """What connections are held to."""
        return self._limits


class _GuardedConnection(asyncio.Protocol):
    """One connection: hands everything on to aiohttp's protocol, and keeps the time."""

    def __init__(self, owner: HardenedServer, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self._owner = owner
        self._limits = owner.limits
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = False

    def serve(self) -> None:
        """A whole head has come."""
        self._idle = False
        self._owner.request_begun(self)
        self._set_deadline(self._limits.answer)

    def drop(self) -> None:
        """End the connection now."""
        self._owner.closed(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.inner.connection_made(transport)
        self._owner.accepted(self)
        if not self._transport.is_closing():
            self._owner.awaits_request(self)
            self._set_deadline(self._limits.head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.closed(self)
        if self._timer is not None:
            self._timer.cancel()
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._idle:
            self._idle = False
            self._set_deadline(self._limits.head)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def response_made(self) -> None:
        """The answer is made; it is sent, and the next request may take its time to begin."""
        if self._transport is not None and not self._transport.is_closing():
            self._idle = True
            self._owner.awaits_request(self)
            self._set_deadline(self._limits.idle)

    def _set_deadline(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.drop)
