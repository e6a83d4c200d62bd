"""Watches and big lists on connections of their own, at the lowest price that Python allows.

Raw HTTP/1.1 on a `BufferedProtocol`: any layer above costs more than the work itself, where a core is spent
on reading. One connection carries one request; it is closed with its stream. Watches of a second, with which
informers prove the others, keep theirs: a TLS handshake for each would be most of what an idle program does.

`StreamTransport` makes one attempt each, with the client's rate limit, credentials and timeouts,
and no retry: the reflector decides what follows a failure. A watch that stays silent for longer
than it was to last, and a little more, is taken for ended, because a peer that vanished without
closing looks just like a quiet one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, TypeVar

from kubeloop.aio.clock import SystemClock
from kubeloop.aio.tasks import TimeBudget
from kubeloop.client.errors import ProtocolError
from kubeloop.client.responses import Response, error_from_response, not_kubernetes
from kubeloop.client.wire.dial import ApiServer, api_request_bytes
from kubeloop.client.wire.errors import lost, timed_out, transport_error
from kubeloop.client.wire.list_decoder import BATCH, PageDecoder
from kubeloop.client.wire.watch import WireWatch
from kubeloop.http.client import ConnectFailed, HttpClient
from kubeloop.http.connection import Connection
from kubeloop.http.framing import FramingError
from kubeloop.objects.list_watch import DecodeError, Page

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from kubeloop.client.auth.identity import AuthContext
    from kubeloop.client.config.endpoint import Endpoint
    from kubeloop.client.pipeline import RequestPipeline
    from kubeloop.client.request import Request
    from kubeloop.client.wire.transport import Timeouts
    from kubeloop.http.client import HeaderLines
    from kubeloop.objects.codec import Codec


T = TypeVar("T")

# API servers wait up to 60 s themselves before they refuse a request; after that, no answer will
# come.
_HEAD_TIMEOUT = 65.0
_MAX_REFUSAL = 1024 * 1024


# How long a server lets a watch live at most where the request does not say.
_LONGEST_WATCH = 3600
_GRACE = 5.0
# Probes of an idle program come once a minute; API servers keep an idle connection for 90 s.
_BRIEF, _KEEP_BRIEF, _MOST_BRIEF = 1, 75.0, 8


async def open_watch(
    request: StreamRequest, codec: Codec[T], *, idle_timeout: float
) -> WireWatch[T]:
    """Open a watch; returns once the server accepted it. Raises `KubeError`.

    `idle_timeout` is the silence after which the peer is taken for dead, a clean end.
    """
    connection = await request.open(timeout=min(_HEAD_TIMEOUT, idle_timeout))
    connection.set_idle_timeout(idle_timeout)
    return WireWatch(connection, codec=codec, url=request.url)


async def _open_brief(
    request: StreamRequest, codec: Codec[T], kept: HttpClient, *, idle_timeout: float
) -> WireWatch[T]:
    """Open a watch as `open_watch`, on a connection that is kept if the server ends the watch."""
    server = ApiServer(request.endpoint, request.ssl_context)
    async with contextlib.AsyncExitStack() as stack:
        with request.translating_errors():
            async with asyncio.timeout(idle_timeout):
                exchange = kept.exchange(server, request.wire(), timeout=None)
                connection = (await stack.enter_async_context(exchange)).connection
                await request.accepted(connection)
        free = stack.pop_all().aclose
    connection.set_idle_timeout(idle_timeout)
    return WireWatch(connection, codec=codec, url=request.url, free=free)


async def read_list(
    request: StreamRequest,
    codec: Codec[T],
    *,
    timeout: float,
    on_answer: Callable[[], None] | None = None,
) -> Page[T]:
    """Read one list response, decoding it as it arrives. Raises `KubeError`.

    `timeout` covers everything from the first packet to the last. The loop is never held for longer
    than a batch of items takes, some milliseconds.
    """
    connection = Connection(queue_limit=BATCH)
    try:
        with request.translating_errors():
            async with asyncio.timeout(timeout):
                await request.send(connection)
                await request.accepted(connection)
                if on_answer is not None:
                    on_answer()
                return await _read_page(request.url, connection, codec)
    finally:
        await connection.close()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """A GET on its way: sent, accepted or refused, and its failures reported with its URL.

    `target` is path and query below the endpoint's own path. `connect_timeout` covers TCP, proxy
    and TLS.
    """

    endpoint: Endpoint
    ssl_context: ssl.SSLContext | None
    headers: HeaderLines
    target: str
    connect_timeout: float

    @property
    def url(self) -> str:
        """The request, for messages."""
        return f"{self.endpoint.url}{self.target}"

    async def send(self, connection: Connection) -> None:
        """Connect, and ask. Raises ValueError for a header that would be two."""
        head = self.wire(("Connection", "close"))
        try:
            async with asyncio.timeout(self.connect_timeout):
                await ApiServer(self.endpoint, self.ssl_context).connect(connection)
        except TimeoutError as error:
            raise timed_out(self.url, self.connect_timeout, doing="connecting") from error
        connection.established()
        connection.write(head)

    def wire(self, *more: tuple[str, str]) -> bytes:
        """Return the request's bytes. Raises ValueError for a header that would be two."""
        fields = (("Accept-Encoding", "identity"), *more, *self.headers)
        return api_request_bytes(self.endpoint, self.target, fields)

    async def open(self, *, timeout: float | None, content: str = "json") -> Connection:
        """Return a connection on which the answer has begun."""
        connection = Connection()
        try:
            with self.translating_errors():
                async with asyncio.timeout(timeout):
                    await self.send(connection)
                    await self.accepted(connection, content)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def accepted(self, connection: Connection, content: str = "json") -> None:
        """Wait for the answer's head; raise what it says if it is not success."""
        head = await connection.head()
        kinds = head.values("content-type")
        if head.status != 200 or not all(content in kind.lower() for kind in kinds):
            body = await _whole(connection, _MAX_REFUSAL)
            answer = Response(status=head.status, headers=head.fields, body=body, url=self.url)
            if answer.ok:
                raise not_kubernetes(answer)
            raise error_from_response(answer, now=SystemClock().now())
        coding = ", ".join(head.values("content-encoding"))
        if coding not in {"", "identity"}:
            raise ProtocolError(f"{self.url}: the body is in {coding}, which was not asked for")

    @contextlib.contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Translate the wire's errors; all others pass unchanged."""
        try:
            yield
        except (FramingError, DecodeError) as error:
            raise ProtocolError(f"{self.url}: {error}") from error
        except ConnectFailed as error:
            raise transport_error(error.cause, self.url) from error
        except OSError as error:
            raise transport_error(error, self.url) from error


async def _whole(connection: Connection, limit: int) -> bytes:
    body = bytearray()
    while len(body) < limit and (data := await connection.read()):
        body += data
    return bytes(body)


async def _read_page(url: str, connection: Connection, codec: Codec[T]) -> Page[T]:
    decoder, budget, size = PageDecoder(codec), TimeBudget(), 0
    while data := await connection.read():
        size += len(data)
        decoder.feed(data)
        if budget.spent():
            await budget.rest()
    if isinstance(connection.error, FramingError):
        raise connection.error
    if not connection.complete:
        why = connection.error or "end of stream"
        raise lost(url, f"{why}, after {size} bytes of the list", answer_begun=True)
    return decoder.finish()


class StreamTransport:
    """Opens lists and watches for one client."""

    def __init__(
        self, *, pipeline: RequestPipeline, endpoint: Endpoint, timeouts: Timeouts
    ) -> None:
        self._pipeline = pipeline
        self._endpoint = endpoint
        self._timeouts = timeouts
        self._kept: HttpClient | None = HttpClient(
            keep=_KEEP_BRIEF, most_idle=_MOST_BRIEF, connect_timeout=timeouts.connect
        )

    async def aclose(self) -> None:
        """Close the connections that are kept, and keep no others. Safe to repeat."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.aclose()

    async def list(
        self, request: Request, codec: Codec[T], *, on_answer: Callable[[], None] | None = None
    ) -> Page[T]:
        """Read one list. Raises `KubeError`."""
        return await self._pipeline.once(
            lambda auth: read_list(
                self._sent(request, auth), codec, timeout=self._timeouts.list, on_answer=on_answer
            )
        )

    async def watch(self, request: Request, codec: Codec[T], *, seconds: int) -> WireWatch[T]:
        """Open a watch that the server was asked to end after `seconds` (0: as it likes)."""
        silence = (seconds or _LONGEST_WATCH) + _GRACE

        def opened(auth: AuthContext) -> Awaitable[WireWatch[T]]:
            sent = self._sent(request, auth)
            if seconds == _BRIEF and self._kept is not None:
                return _open_brief(sent, codec, self._kept, idle_timeout=silence)
            return open_watch(sent, codec, idle_timeout=silence)

        return await self._pipeline.once(opened)

    async def text(self, request: Request, *, patient: bool) -> AsyncGenerator[bytes, None]:
        """Read an answer of plain text as it comes; a patient reader waits for its head too."""
        timeout = None if patient else _HEAD_TIMEOUT
        connection = await self._pipeline.once(
            lambda auth: self._sent(request, auth).open(timeout=timeout, content="text/plain")
        )
        try:
            while data := await connection.read():
                yield data
            if not connection.complete:
                url, why = f"{self._endpoint.url}{request.target}", str(connection.error or "")
                raise lost(url, why, answer_begun=True) from connection.error
        finally:
            await connection.close()

    def _sent(self, request: Request, auth: AuthContext) -> StreamRequest:
        return StreamRequest(
            endpoint=self._endpoint,
            ssl_context=auth.ssl_context,
            headers=(("Accept", request.accept), *auth.headers()),
            target=request.target,
            connect_timeout=self._timeouts.connect,
        )
