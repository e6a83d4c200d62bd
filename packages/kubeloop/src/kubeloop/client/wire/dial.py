"""Connecting: TCP with keep-alive, TLS, and the proxy in between.

An https server behind a proxy is reached through a CONNECT tunnel, an http one by asking the proxy
itself with an absolute URL. A proxy with an https URL is spoken to over TLS, verified against the
system's authorities.

The addresses of a name are tried one after the other, not raced (RFC 8305): asyncio's race loses the
winner's socket when it is cancelled at the wrong moment.

A control-plane node that loses power answers nothing and closes nothing; a watch on it would wait
for minutes. So the kernel sends keep-alive probes after half a minute of silence, and gives up when
a probe, or anything else that was sent, has had no acknowledgement for a quarter of a minute more:
45 seconds in all, as long as client-go takes.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import ssl
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from kubeloop.client.errors import TransportError
from kubeloop.client.wire.errors import proxy_error
from kubeloop.http.client import HeaderLines, open_connection, request_bytes
from kubeloop.http.framing import HttpResponseHead, ResponseHeadReader
from kubeloop.objects.names import url_host

if TYPE_CHECKING:
    from kubeloop.client.config.endpoint import Endpoint
    from kubeloop.http.connection import Connection


@dataclasses.dataclass(frozen=True, slots=True)
class ApiServer:
    """An API server as connections are made and kept: by its address, and the TLS context of the credentials."""

    endpoint: Endpoint
    ssl_context: ssl.SSLContext | None

    async def connect(self, connection: Connection) -> None:
        """Connect, and attach the connection. Raises OSError, FramingError or TransportError."""
        endpoint = self.endpoint
        if endpoint.proxy is None:
            context = self._context() if endpoint.is_secure else None
            name = endpoint.server_name or endpoint.host
            await open_connection(connection, endpoint.host, endpoint.port, context, name)
        elif endpoint.is_secure:
            await _dial_through(connection, endpoint, self._context())
        else:
            await _dial_proxy(endpoint, connection)

    def _context(self) -> ssl.SSLContext:
        return self.ssl_context or ssl.create_default_context()


def api_request_bytes(
    endpoint: Endpoint,
    target: str,
    headers: HeaderLines,
    *,
    method: str = "GET",
    body: bytes | None = None,
) -> bytes:
    """Write a request. `target` is the path below the endpoint's own, and the query."""
    authority = _authority(endpoint)
    path = f"{endpoint.path}{target}"
    fields = {"Host": authority}
    if endpoint.proxy is not None and not endpoint.is_secure:
        path = f"{endpoint.scheme}://{authority}{path}"
        fields |= _proxy_authorization(urlsplit(endpoint.proxy))
    return request_bytes(method, path, (*fields.items(), *headers), body)


def _authority(endpoint: Endpoint) -> str:
    return f"{url_host(endpoint.host)}:{endpoint.port}"


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"}


async def _dial_proxy(endpoint: Endpoint, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
    proxy = urlsplit(endpoint.proxy or "")
    context = ssl.create_default_context() if proxy.scheme == "https" else None
    host, port = proxy.hostname or "", proxy.port or (443 if proxy.scheme == "https" else 80)
    try:
        return await open_connection(protocol, host, port, context, host)
    except OSError as error:
        raise proxy_error(error, endpoint.url, endpoint.proxy_address) from error


class _Tunnel(asyncio.Protocol):
    """Waits for the proxy's answer to CONNECT."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[HttpResponseHead] = asyncio.get_running_loop().create_future()
        self._head_reader = ResponseHeadReader()

    def data_received(self, data: bytes) -> None:
        try:
            found = self._head_reader.feed(memoryview(data))
        except ValueError as error:
            self._fail(error)
        else:
            if found is not None and not self.answer.done():
                self.answer.set_result(found[0])

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionError("the proxy closed the connection"))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # retrieved here, because a cancelled caller never will


async def _dial_through(
    connection: Connection, endpoint: Endpoint, context: ssl.SSLContext
) -> None:
    assert endpoint.proxy is not None
    proxy, authority = urlsplit(endpoint.proxy), _authority(endpoint)
    tunnel = _Tunnel()
    transport = await _dial_proxy(endpoint, tunnel)
    try:
        fields = {"Host": authority, **_proxy_authorization(proxy)}
        transport.write(request_bytes("CONNECT", authority, tuple(fields.items()), None))
        _require_tunnel(endpoint, await tunnel.answer)
        upgraded = await asyncio.get_running_loop().start_tls(
            transport, connection, context, server_hostname=endpoint.server_name or endpoint.host
        )
        assert upgraded is not None
        connection.connection_made(upgraded)
    except BaseException:
        transport.abort()
        raise


def _require_tunnel(endpoint: Endpoint, head: HttpResponseHead) -> None:
    if not 200 <= head.status < 300:
        raise TransportError(
            f"{endpoint.url}: the proxy refused the tunnel: HTTP {head.status} {head.reason}; check"
            " proxy-url, its credentials, and whether the proxy allows this host"
        )
