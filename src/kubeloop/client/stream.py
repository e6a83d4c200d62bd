"""Watches and big lists on connections of their own, at the lowest price that Python allows.

aiohttp serves all other requests. Here, where a core is spent on reading, its layers cost more than
the work itself: raw HTTP/1.1 on a `BufferedProtocol` takes half the processor time per event.
One connection carries one request; it is closed with its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from kubeloop.aio.budget import Budget
from kubeloop.aio.clock import SystemClock
from kubeloop.client.answers import Response, error_from_response, not_kubernetes
from kubeloop.client.chunks import FramingError
from kubeloop.client.connection import Connection
from kubeloop.client.connection_errors import lost, timed_out, transport_error
from kubeloop.client.dial import dial, request_bytes
from kubeloop.client.errors import ProtocolError
from kubeloop.client.list_stream import BATCH, PageDecoder
from kubeloop.client.watch import WireWatch
from kubeloop.objects.envelopes import DecodeError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

    from kubeloop.client.endpoint import Endpoint
    from kubeloop.objects.codec import Codec
    from kubeloop.objects.lists import Page

T = TypeVar("T")

# API servers wait up to 60 s themselves before they refuse a request; no answer after that is none.
_HEAD_TIMEOUT = 65.0
_MAX_REFUSAL = 1024 * 1024


async def open_watch(
    *,
    endpoint: Endpoint,
    ssl_context: ssl.SSLContext | None,
    headers: Mapping[str, str],
    target: str,
    codec: Codec[T],
    connect_timeout: float,
    idle_timeout: float,
) -> WireWatch[T]:
    """Open a watch; returns once the server accepted it. Raises `KubeError`.

    `target` is path and query below the endpoint's own path. `connect_timeout` covers TCP, proxy
    and TLS; `idle_timeout` is the silence after which the peer is taken for dead, a clean end.
    """
    connection = Connection()
    request = _Request(endpoint, ssl_context, request_bytes(endpoint, target, headers), target)
    try:
        with request.telling():
            async with asyncio.timeout(min(_HEAD_TIMEOUT, idle_timeout)):
                await request.send(connection, connect_timeout=connect_timeout)
                await request.accepted(connection)
    except BaseException:
        await connection.close()
        raise
    connection.limit_silence(idle_timeout)
    return WireWatch(connection, codec=codec, url=request.url)


async def read_list(
    *,
    endpoint: Endpoint,
    ssl_context: ssl.SSLContext | None,
    headers: Mapping[str, str],
    target: str,
    codec: Codec[T],
    connect_timeout: float,
    timeout: float,
) -> Page[T]:
    """Read one list response, decoding it as it arrives. Raises `KubeError`.

    `timeout` covers everything from the first packet to the last. The loop is never held for longer
    than a batch of items takes, some milliseconds.
    """
    connection = Connection(queue_limit=BATCH)
    request = _Request(endpoint, ssl_context, request_bytes(endpoint, target, headers), target)
    try:
        with request.telling():
            async with asyncio.timeout(timeout):
                await request.send(connection, connect_timeout=connect_timeout)
                await request.accepted(connection)
                return await _read_page(request.url, connection, codec)
    finally:
        await connection.close()


class _Request:
    """A GET on its way: sent, accepted or refused, and its failures told with its URL."""

    def __init__(
        self, endpoint: Endpoint, ssl_context: ssl.SSLContext | None, head: bytes, target: str
    ) -> None:
        self.url = f"{endpoint.url}{target}"
        self._endpoint = endpoint
        self._ssl_context = ssl_context
        self._head = head

    async def send(self, connection: Connection, *, connect_timeout: float) -> None:
        try:
            async with asyncio.timeout(connect_timeout):
                await dial(connection, endpoint=self._endpoint, ssl_context=self._ssl_context)
        except TimeoutError as error:
            raise timed_out(self.url, connect_timeout, doing="connecting") from error
        connection.transport.write(self._head)

    async def accepted(self, connection: Connection) -> None:
        """Wait for the answer's head; raise what it says if it is not success."""
        head = await connection.head()
        kinds = head.values("content-type")
        if head.status != 200 or not all("json" in kind.lower() for kind in kinds):
            body = await _whole(connection, _MAX_REFUSAL)
            answer = Response(status=head.status, headers=head.fields, body=body, url=self.url)
            if answer.ok:
                raise not_kubernetes(answer)
            raise error_from_response(answer, now=SystemClock().now())
        coding = ", ".join(head.values("content-encoding"))
        if coding not in {"", "identity"}:
            raise ProtocolError(f"{self.url}: the body is in {coding}, which was not asked for")

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Translate the wire's errors; ours, and what is no error of the wire, pass as they are."""
        try:
            yield
        except (FramingError, DecodeError) as error:
            raise ProtocolError(f"{self.url}: {error}") from error
        except OSError as error:
            raise transport_error(error, self.url) from error


async def _whole(connection: Connection, limit: int) -> bytes:
    body = bytearray()
    while len(body) < limit and (data := await connection.read()):
        body += data
    return bytes(body)


async def _read_page(url: str, connection: Connection, codec: Codec[T]) -> Page[T]:
    decoder, budget, size = PageDecoder(codec), Budget(), 0
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
