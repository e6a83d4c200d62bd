"""One attempt at one request over HTTP/1.1 with pooled connections.

Nothing is decided here: no retries, no rate, no meaning of status codes. Connections are pooled by
the TLS context that they were made with, so credentials that bring a new context get new
connections while requests on old ones finish undisturbed and idle old ones expire.

Redirects are not followed (an API server does not redirect, and credentials must not travel), no
cookies are kept, and no environment variable is read: a proxy is what the configuration says.
aiohttp itself sends a repeatable request once more where a pooled connection turns out to be closed.

Bodies are asked for uncompressed unless `compression` is on. Servers compress only above 128 KiB,
and a megabyte of JSON costs some 4 ms of processor time to compress and 2 ms to expand (measured):
a gain below about 1 Gbit/s, a loss inside a cluster.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import ssl
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import yarl
from multidict import CIMultiDict

from kubeloop.aio.clock import SystemClock
from kubeloop.client.errors import KubeError, ProtocolError, TransportError
from kubeloop.client.responses import Response, error_from_response, lower_names
from kubeloop.client.wire.dial import keepalive_socket
from kubeloop.client.wire.errors import lost, proxy_error, timed_out, transport_error

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from kubeloop.client.auth.identity import AuthContext
    from kubeloop.client.config.endpoint import Endpoint
    from kubeloop.client.request import Request

# Below the shortest idle timeout of servers and load balancers in common use (a minute), so that a
# request seldom meets a connection that the other side is just closing.
_KEEP_ALIVE = 30.0
_MAX_CONNECTIONS = 100
# No list of a cluster is larger; an answer without an end is.
_MAX_BODY = 1 << 30
# Servers send 32 KiB in one message; only a Status may be longer, and not by so much.
_MAX_MESSAGE = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds for making a connection, for a whole request, and for an informer's list.

    A server gives up on a request after 60 s and says so; `request` is longer to hear it. Lists of
    informers may be hundreds of megabytes in one body.
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
    ) -> aiohttp.ClientWebSocketResponse:
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
        self._session: aiohttp.ClientSession | None = None
        self._sockets: aiohttp.ClientSession | None = None
        self._closed = False

    async def send(self, request: Request, auth: AuthContext, *, timeout: float) -> Response:
        """Send once and return the answer, whatever its status. Raises `TransportError`."""
        url = self._endpoint.url + request.target
        exchange = self._exchange(url, timeout)
        try:
            async with self._open(request, auth, url, exchange.limits) as answer:
                exchange.answer_begun = True
                return await self._whole(answer, url)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise exchange.translate(error) from error

    async def open_socket(
        self, request: Request, auth: AuthContext, *, protocols: tuple[str, ...], timeout: float
    ) -> aiohttp.ClientWebSocketResponse:
        """Upgrade to a WebSocket of one of the protocols, once. Raises `KubeError`."""
        url = self._endpoint.url + request.target
        try:
            async with asyncio.timeout(timeout):
                socket = await self._get_sockets().ws_connect(
                    yarl.URL(url, encoded=True),
                    protocols=protocols,
                    headers=self._headers(request, auth),
                    max_msg_size=_MAX_MESSAGE,
                    ssl=auth.ssl_context if auth.ssl_context is not None else True,
                    server_hostname=self._endpoint.server_name,
                    proxy=self._endpoint.proxy,
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._exchange(url, timeout).translate(error) from error
        if socket.protocol not in protocols:
            await socket.close()
            raise ProtocolError(f"{url}: the server speaks none of {', '.join(protocols)}")
        return socket

    async def _upgraded(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Pass an upgrade on; raise what any other answer means.

        aiohttp alone would drop that answer's body, follow a redirect, and send the request once
        more where the connection is lost: a command would run twice.
        """
        url = str(request.url)
        try:
            answer = await handler(request)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            raise self._exchange(url, None).translate(error) from error
        if answer.status == 101:
            return answer
        async with answer:
            refusal = await self._whole(answer, url)
        raise error_from_response(refusal, now=SystemClock().now())

    def _exchange(self, url: str, timeout: float | None) -> _Exchange:
        return _Exchange(
            url,
            timeout=timeout,
            connect_timeout=self._connect_timeout,
            proxy=self._endpoint.proxy_address,
        )

    async def _whole(self, answer: aiohttp.ClientResponse, url: str) -> Response:
        pieces, left = [], self._max_body
        async for piece in answer.content.iter_any():
            left -= len(piece)
            if left < 0:
                raise ProtocolError(
                    f"{url}: the answer is longer than {self._max_body} bytes; ask for fewer objects at once"
                )
            pieces.append(piece)
        headers, body = lower_names(answer.headers.items()), b"".join(pieces)
        return Response(status=answer.status, headers=headers, body=body, url=url)

    async def aclose(self) -> None:
        """Close every connection. Safe to repeat."""
        self._closed = True
        sessions = self._session, self._sockets
        self._session = self._sockets = None
        for session in sessions:
            if session is not None:
                await session.close()

    def _open(
        self, request: Request, auth: AuthContext, url: str, limits: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._get_session().request(
            request.method,
            yarl.URL(url, encoded=True),
            # aiohttp warns of large bytes, which it would send in one piece.
            data=None if request.body is None else io.BytesIO(request.body),
            headers=self._headers(request, auth),
            timeout=limits,
            allow_redirects=False,
            ssl=auth.ssl_context if auth.ssl_context is not None else True,
            server_hostname=self._endpoint.server_name,
            proxy=self._endpoint.proxy,
        )

    def _headers(self, request: Request, auth: AuthContext) -> CIMultiDict[str]:
        headers = CIMultiDict(auth.headers())
        headers["Accept"] = request.accept
        headers["Accept-Encoding"] = self._encoding
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        return headers

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._new_session(limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE)
        return self._session

    def _get_sockets(self) -> aiohttp.ClientSession:
        # WebSockets last, so they have no part in the requests' limit.
        if self._sockets is None:
            self._sockets = self._new_session(self._upgraded, limit=0, force_close=True)
        return self._sockets

    def _new_session(
        self, *middlewares: aiohttp.ClientMiddlewareType, **pooling: Any
    ) -> aiohttp.ClientSession:
        if self._closed:
            raise RuntimeError("the client is closed: use it inside its `async with` block")
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=keepalive_socket, **pooling),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            # A packed answer that was not asked for may be a thousand times its size.
            auto_decompress=self._encoding == "gzip",
            raise_for_status=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout),
            middlewares=middlewares,
        )


class _Exchange:
    """One attempt's limits, and what is known of it when it fails."""

    def __init__(
        self, url: str, *, timeout: float | None, connect_timeout: float, proxy: str
    ) -> None:
        self._url = url
        self._proxy = proxy
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self.answer_begun = False

    @property
    def limits(self) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=self._timeout, sock_connect=self._connect_timeout)

    def translate(self, error: Exception) -> KubeError:
        """Turn what aiohttp raises into our own."""
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return transport_error(error.certificate_error, self._url)
            case aiohttp.ClientConnectorError():
                return self._not_connected(error)
            case aiohttp.ConnectionTimeoutError():
                return timed_out(self._url, self._connect_timeout, doing="connecting")
            case TimeoutError():
                return timed_out(self._url, self._timeout, doing="the request")
            case aiohttp.ClientResponseError():
                return self._not_http(error)
            case _:
                return self._lost(error)

    def _not_connected(self, error: aiohttp.ClientConnectorError) -> TransportError:
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return proxy_error(error.os_error, self._url, self._proxy)
        return transport_error(error.os_error, self._url)

    def _not_http(self, error: aiohttp.ClientResponseError) -> KubeError:
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return TransportError(
                f"{self._url}: the proxy refused with HTTP {error.status} {error.message};"
                " check proxy-url and its credentials"
            )
        return ProtocolError(
            f"{self._url}: the answer is not HTTP: {error.message}; is this an API server's port?"
        )

    def _lost(self, error: Exception) -> TransportError:
        cause = _cause(error)
        ended = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError)
        if ended and not isinstance(cause, ssl.SSLError):
            return lost(self._url, str(error), answer_begun=self.answer_begun)
        return transport_error(cause, self._url, answer_begun=self.answer_begun)


def _cause(error: BaseException) -> BaseException:
    """Return the standard library's error below aiohttp's."""
    below = error.__cause__ or error.__context__
    if isinstance(error, aiohttp.ClientError) and below is not None:
        return _cause(below)
    return error
