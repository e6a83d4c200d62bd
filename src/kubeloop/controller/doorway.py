"""Where connections come into an aiohttp server, and how long they may do nothing.

aiohttp's server waits for the rest of a request for as long as somebody trickles bytes, and takes any
number of connections. Inside a cluster anybody may connect to a port that probes need open, so:

- A new connection has a few seconds to send a whole head; so has each further request on it, from its
  first byte on. A body has as long, and what comes of a request is sent within a minute.
- Between requests a connection may rest for a minute.
- There are so many connections at most. One more takes the place of the one that has waited longest for
  its request; whoever is being served keeps its place. So those who hold connections and say nothing
  keep out each other, and nobody who has something to say.

aiohttp itself is loaded when a server is started, not when this module is imported.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """Seconds for a head or a body, between requests and for an answer; and how many connections."""

    head: float = 10.0
    idle: float = 60.0
    answer: float = 60.0
    connections: int = 512


class Doorway:
    """Serves an application, from `open` to `close`."""

    def __init__(self, limits: DoorLimits | None = None) -> None:
        self._limits = limits or DoorLimits()
        self._doors: dict[object, _Door] = {}
        self._waiting: OrderedDict[_Door, None] = OrderedDict()
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None

    def __len__(self) -> int:
        return len(self._doors)

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
            lambda: _Door(self, protocols()), host, port, backlog=1024
        )

    async def close(self) -> None:
        """Let nobody in any more, and answer those who are being served. Safe to repeat."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _middleware(self) -> Any:
        """Return what tells who is being served, and reads the body in time."""
        from aiohttp import web  # noqa: PLC0415 -- as above

        @web.middleware
        async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
            door = self._doors.get(request.protocol)
            if door is None:  # it is being shut
                raise web.HTTPServiceUnavailable(text="too many connections\n")
            door.serve()
            try:
                await self._read(request)
                return await handler(request)
            finally:
                door.rest()

        return serve

    async def _read(self, request: web.Request) -> None:
        from aiohttp import web  # noqa: PLC0415 -- as above

        try:
            async with asyncio.timeout(self._limits.head):
                await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the body did not come in time\n") from None

    # What doors tell

    def entered(self, door: _Door) -> None:
        """Somebody came in."""
        self._doors[door.inner] = door
        if len(self._doors) > self._limits.connections:
            next(iter(self._waiting), door).shut()

    def waits(self, door: _Door) -> None:
        """Somebody owes a request, from now on."""
        self._waiting[door] = None
        self._waiting.move_to_end(door)

    def is_served(self, door: _Door) -> None:
        """Somebody's request has come."""
        self._waiting.pop(door, None)

    def left(self, door: _Door) -> None:
        """Somebody is gone, or as good as gone."""
        self._doors.pop(door.inner, None)
        self._waiting.pop(door, None)

    @property
    def limits(self) -> DoorLimits:
        """What connections are held to."""
        return self._limits


class _Door(asyncio.Protocol):
    """One connection: hands everything on to aiohttp's protocol, and keeps the time."""

    def __init__(self, doorway: Doorway, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self._doorway = doorway
        self._limits = doorway.limits
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = False

    def serve(self) -> None:
        """A whole head has come."""
        self._idle = False
        self._doorway.is_served(self)
        self._within(self._limits.answer)

    def shut(self) -> None:
        """End the connection now."""
        self._doorway.left(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.inner.connection_made(transport)
        self._doorway.entered(self)
        if not self._transport.is_closing():
            self._doorway.waits(self)
            self._within(self._limits.head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._doorway.left(self)
        if self._timer is not None:
            self._timer.cancel()
        self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._idle:
            self._idle = False
            self._within(self._limits.head)
        self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received()

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def rest(self) -> None:
        """The answer is made; it is sent, and the next request may take its time to begin."""
        if self._transport is not None and not self._transport.is_closing():
            self._idle = True
            self._doorway.waits(self)
            self._within(self._limits.idle)

    def _within(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.shut)
