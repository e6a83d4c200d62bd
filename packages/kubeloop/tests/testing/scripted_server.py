"""An API server on a loopback socket that answers exactly as a test scripts it.

    async with ScriptedServer() as server:
        server.expect("GET", "/api/v1/pods", reply({...}), refuse(429, "TooManyRequests"))
        watch = server.expect_watch("/api/v1/pods")
        ...
        await watch.event("ADDED", pod)

`expect` queues answers that are used once each, in order; `serve` answers any number of times.
Expectations go first. On leaving the block the test fails where a request came that was not
scripted, an expected one never came, or an answer raised; no task and no socket stays behind.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self, TypeAlias

from tests.testing.scripted_answers import WatchScript, refuse
from tests.testing.scripted_exchange import (
    Exchange,
    NoticingReader,
    RecordedRequest,
    linger_not,
    read_request,
    reset_connection,
)

if TYPE_CHECKING:
    import re
    from collections.abc import Mapping

    from tests.testing.scripted_answers import Answer

RawHandler: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Rule:
    """Which requests an answer is for. A query value of None means: the parameter is absent."""

    method: str
    path: str | re.Pattern[str]
    query: Mapping[str, str | None]

    def matches(self, request: RecordedRequest) -> bool:
        if request.method != self.method:
            return False
        if isinstance(self.path, str):
            same = request.path == self.path
        else:
            same = self.path.fullmatch(request.path) is not None
        return same and all(request.query.get(k) == v for k, v in self.query.items())

    def __str__(self) -> str:
        path = self.path if isinstance(self.path, str) else f"/{self.path.pattern}/"
        return f"{self.method} {path}" + (f" {dict(self.query)}" if self.query else "")


class _Peer:
    """One accepted socket, from before its TLS handshake until it is closed."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._sock = sock
        self._opening = False
        self._writer: asyncio.StreamWriter | None = None

    async def open(
        self, context: ssl.SSLContext | None
    ) -> tuple[NoticingReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = NoticingReader()
        # From here on the socket is asyncio's, which closes it however the handshake ends.
        self._opening = True
        transport, protocol = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), self._sock, ssl=context
        )
        self._writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        return reader, self._writer

    def reset(self) -> None:
        if self._writer is not None:
            reset_connection(self._writer)
        elif not self._opening:
            linger_not(self._sock)
            self._sock.close()

    async def close(self) -> None:
        if self._writer is None:
            if not self._opening:
                self._sock.close()
            return
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class ScriptedServer:
    """A loopback HTTP or HTTPS server driven by a script. See the module for how to use it."""

    def __init__(self, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self._ssl = ssl_context
        self._expected: list[tuple[_Rule, collections.deque[Answer]]] = []
        self._served: list[tuple[_Rule, Answer]] = []
        self._listener: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], _Peer] = {}
        self._resets_due = 0
        self._raw_handlers: collections.deque[RawHandler] = collections.deque()
        self._accepted = 0
        self._arrival = asyncio.Condition()
        self._port = 0
        self._unexpected: list[str] = []
        self._failures: list[str] = []
        self.requests: list[RecordedRequest] = []

    @property
    def host(self) -> str:
        """The address the server listens on."""
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """The port; the same after `stop_listening` and `listen`."""
        return self._port

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"{'https' if self._ssl else 'http'}://{self.host}:{self._port}"

    @property
    def accepted(self) -> int:
        """How many connections were accepted so far."""
        return self._accepted

    def expect(
        self,
        method: str,
        path: str | re.Pattern[str],
        *answers: Answer,
        query: Mapping[str, str | None] | None = None,
    ) -> None:
        """Queue answers, each to be used exactly once, in order."""
        self._expected.append((_Rule(method, path, query or {}), collections.deque(answers)))

    def expect_watch(
        self,
        path: str | re.Pattern[str],
        script: WatchScript | None = None,
        *,
        query: Mapping[str, str | None] | None = None,
    ) -> WatchScript:
        """Expect one watch request and return the handle that feeds it."""
        script = script or WatchScript()
        self.expect("GET", path, script, query={"watch": "true"} | dict(query or {}))
        return script

    def serve(
        self,
        method: str,
        path: str | re.Pattern[str],
        answer: Answer,
        *,
        query: Mapping[str, str | None] | None = None,
    ) -> None:
        """Answer any number of requests, none included; the newest matching rule wins."""
        self._served.insert(0, (_Rule(method, path, query or {}), answer))

    def reset_next_connections(self, count: int = 1) -> None:
        """Reset the next accepted connections before a byte is exchanged."""
        self._resets_due += count

    def hand_over_next_connection(self, handler: RawHandler) -> None:
        """Give the next connection to a function, without reading a request from it."""
        self._raw_handlers.append(handler)

    async def arrived(self, count: int) -> list[RecordedRequest]:
        """Wait until at least `count` requests have arrived in all, and return all of them."""
        async with self._arrival:
            await self._arrival.wait_for(lambda: len(self.requests) >= count)
        return list(self.requests)

    async def listen(self) -> None:
        """Accept connections, on the same port as before if there was one."""
        self._listener = socket.create_server((self.host, self._port), backlog=1024)
        self._listener.settimeout(0)
        self._port = self._listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listener, self._accept)

    async def stop_listening(self, *, drop_connections: bool = True) -> None:
        """Refuse new connections; `listen` ends it."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if drop_connections:
            await self.drop_connections()

    async def drop_connections(self) -> None:
        """Reset every open connection, whatever it is doing."""
        connections, self._connections = self._connections, {}
        for task, peer in connections.items():
            peer.reset()
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def verify(self) -> None:
        """Raise AssertionError if the script and what happened differ so far."""
        if report := self._report():
            raise AssertionError(report)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await self.stop_listening()
        report = self._report()
        if not report:
            return
        if error is None:
            raise AssertionError(report)
        error.add_note(report)

    def _report(self) -> str:
        left = [f"expected but never came: {r} ({len(a)}x)" for r, a in self._expected if a]
        return "\n".join([*self._unexpected, *self._failures, *left])

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self._accepted += 1
        peer = _Peer(sock)
        if self._resets_due:
            self._resets_due -= 1
            peer.reset()
            return
        serving = self._serve_connection(peer, self._accepted)
        task = asyncio.get_running_loop().create_task(serving)
        self._connections[task] = peer
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve_connection(self, peer: _Peer, number: int) -> None:
        try:
            reader, writer = await peer.open(self._ssl)
            if self._raw_handlers:
                await self._raw_handlers.popleft()(reader, writer)
                return
            while request := await read_request(reader, writer, number):
                exchange = Exchange(request, reader=reader, writer=writer)
                await self._answer(exchange)
                if not exchange.reusable:
                    break
        except OSError:
            return  # a client that does not finish the handshake learns it on its own side
        finally:
            await peer.close()

    async def _answer(self, exchange: Exchange) -> None:
        answer = self._choose(exchange.request)
        async with self._arrival:
            self.requests.append(exchange.request)
            self._arrival.notify_all()
        try:
            await answer(exchange)
        except (ConnectionError, ssl.SSLError):
            exchange.reusable = False
        except Exception as error:
            self._failures.append(f"answer to {exchange.request} raised {error!r}")
        else:
            if not exchange.answered:
                self._failures.append(f"answer to {exchange.request} sent nothing")

    def _choose(self, request: RecordedRequest) -> Answer:
        for rule, answers in self._expected:
            if answers and rule.matches(request):
                return answers.popleft()
        for rule, answer in self._served:
            if rule.matches(request):
                return answer
        self._unexpected.append(f"not scripted: {request}")
        return refuse(500, "InternalError", f"the test scripted no answer for {request}")
