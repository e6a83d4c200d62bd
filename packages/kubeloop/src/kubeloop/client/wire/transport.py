"""One attempt at one request over HTTP/1.1 with kept connections.

Nothing is decided here: no retries, no rate, no meaning of status codes. Connections are kept by
the TLS context that they were made with, so credentials that bring a new context get new
connections while requests on old ones finish undisturbed and idle old ones expire.

Redirects are not followed (an API server does not redirect, and credentials must not travel), no
cookies are kept, and no environment variable is read: a proxy is what the configuration says.
A GET is sent once more if a kept connection turns out to be closed; a write may have been carried out by
then, and is not.

Bodies are asked for uncompressed unless `compression` is on. Servers compress only above 128 KiB,
and a megabyte of JSON costs some 4 ms of processor time to compress and 2 ms to expand (measured):
a gain below about 1 Gbit/s, a loss inside a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import zlib
from typing import TYPE_CHECKING, Protocol

from kubeloop.aio.clock import SystemClock
from kubeloop.client.errors import ProtocolError
from kubeloop.client.responses import Response, error_from_response
from kubeloop.client.wire.dial import ApiServer, api_request_bytes
from kubeloop.client.wire.errors import timed_out, transport_error
from kubeloop.client.wire.websocket import Upgrade, WebSocket
from kubeloop.http.client import Answer, AnswerTooLong, ConnectFailed, HeaderLines, HttpClient
from kubeloop.http.connection import Connection
from kubeloop.http.framing import FramingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.client.auth.identity import AuthContext
    from kubeloop.client.config.endpoint import Endpoint
    from kubeloop.client.request import Request

_MAX_CONNECTIONS = 100
# A page of 500 objects takes 10 MiB or so. Informers decode larger lists as they read them.
_MAX_BODY = 128 << 20
_MAX_REFUSAL = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds for making a connection, for a whole request, and for an informer's list.

    A server gives up on a request after 60 s and says so; `request` is longer, to receive that.
    Lists of informers may be hundreds of megabytes in one body.
    """

    connect: float = 10.0
    request: float = 65.0
    list: float = 300.0

    def __post_init__(self) -> None:
        if min(self.connect, self.request, self.list) <= 0:
            raise ValueError(f"{self}: every timeout must be positive")


class Transport(Protocol):
    """Sends requests."""

    async def send(self, request: Request, auth: AuthContext, *, timeout: float) -> Response:
        """Send once and return the answer, whatever its status. Raises `TransportError`."""

    async def open_socket(
        self, request: Request, auth: AuthContext, *, protocols: tuple[str, ...], timeout: float
    ) -> WebSocket:
        """Upgrade to a WebSocket of one of the protocols, once. Raises `KubeError`."""

    async def aclose(self) -> None:
        """Close every connection. Safe to repeat."""


class HttpTransport:
    """The transport for real servers."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        connect_timeout: float = 10.0,
        compression: bool = False,
        max_body: int = _MAX_BODY,
    ) -> None:
        self._endpoint = endpoint
        self._max_body = max_body
        self._connect_timeout = connect_timeout
        self._encoding = "gzip" if compression else "identity"
        self._http = HttpClient(limit=_MAX_CONNECTIONS, connect_timeout=connect_timeout)

    async def send(self, request: Request, auth: AuthContext, *, timeout: float) -> Response:
        """Send once and return the answer, whatever its status. Raises `TransportError`."""
        attempt = _Attempt(self._endpoint.url + request.target, timeout, self._connect_timeout)
        server = ApiServer(self._endpoint, auth.ssl_context)
        with attempt.translating_errors():
            wire = self._wire(request, auth)
            async with self._http.exchange(server, wire, timeout=timeout) as answer:
                attempt.answer_begun = True
                body = await self._whole(answer, attempt.url)
        return Response(
            status=answer.status, headers=answer.head.fields, body=body, url=attempt.url
        )

    async def open_socket(
        self, request: Request, auth: AuthContext, *, protocols: tuple[str, ...], timeout: float
    ) -> WebSocket:
        """Upgrade to a WebSocket of one of the protocols, once. Raises `KubeError`."""
        attempt = _Attempt(self._endpoint.url + request.target, timeout, self._connect_timeout)
        upgrade, connection = Upgrade(protocols), Connection()
        wire, socket = self._wire(request, auth, *upgrade.headers()), None
        try:
            with attempt.translating_errors():
                async with asyncio.timeout(timeout):
                    await ApiServer(self._endpoint, auth.ssl_context).connect(connection)
                    connection.established()
                    connection.write(wire)
                    head = await connection.head()
                    if head.status == 101:
                        socket = upgrade.accept(connection, head)
                        return socket
                    body = await Answer(connection, head).body(limit=_MAX_REFUSAL)
        finally:
            if socket is None:
                await connection.close()
        refusal = Response(status=head.status, headers=head.fields, body=body, url=attempt.url)
        raise error_from_response(refusal, now=SystemClock().now())

    async def _whole(self, answer: Answer, url: str) -> bytes:
        unpacking = zlib.decompressobj(_GZIP)
        is_packed = self._encoding == "gzip" and answer.header("content-encoding") == "gzip"
        try:
            body = await answer.body(limit=self._max_body)
            if not is_packed:
                return body
            body = unpacking.decompress(body, self._max_body)
        except AnswerTooLong:
            body = b""
        except zlib.error as error:
            raise FramingError(f"the body is not gzip: {error}") from error
        if unpacking.eof:
            return body
        raise ProtocolError(
            f"{url}: the answer is longer than {self._max_body} bytes; ask for fewer objects at"
            " once (a selector, a namespace, a smaller page), or use an informer"
        )

    async def aclose(self) -> None:
        """Close every connection. Safe to repeat."""
        await self._http.aclose()

    def _wire(self, request: Request, auth: AuthContext, *more: tuple[str, str]) -> bytes:
        fields: HeaderLines = (("Accept", request.accept), ("Accept-Encoding", self._encoding))
        if request.body is not None:
            fields += (("Content-Type", request.content_type),)
        headers = (*auth.headers(), *fields, *more)
        return api_request_bytes(
            self._endpoint, request.target, headers, method=request.method, body=request.body
        )


class _Attempt:
    """One attempt's limits, and what is known of it when it fails."""

    def __init__(self, url: str, timeout: float, connect_timeout: float) -> None:
        self.url = url
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self.answer_begun = False

    @contextlib.contextmanager
    def translating_errors(self) -> Iterator[None]:
        """Turn the wire's errors into our own, with the URL."""
        try:
            yield
        except ConnectFailed as error:
            if isinstance(error.cause, TimeoutError):
                limit = self._connect_timeout
                raise timed_out(self.url, limit, doing="connecting") from error
            raise transport_error(error.cause, self.url) from error
        except TimeoutError as error:
            raise timed_out(self.url, self._timeout, doing="the request") from error
        except FramingError as error:
            raise ProtocolError(
                f"{self.url}: the answer is not HTTP: {error}; is this an API server's port?"
            ) from error
        except OSError as error:
            raise transport_error(error, self.url, answer_begun=self.answer_begun) from error
