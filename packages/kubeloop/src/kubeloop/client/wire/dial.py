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
import contextlib
import errno
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

from kubeloop.client.errors import TransportError
from kubeloop.client.wire.errors import proxy_error
from kubeloop.client.wire.framing import HttpResponseHead, ResponseHeadReader

if TYPE_CHECKING:
    from kubeloop.client.config.endpoint import Endpoint
    from kubeloop.client.wire.connection import Connection

HeaderLines: TypeAlias = tuple[tuple[str, str], ...]


_KEEPALIVE_IDLE = 30
_KEEPALIVE_INTERVAL = 5
_KEEPALIVE_PROBES = 3
_UNACKNOWLEDGED_LIMIT = _KEEPALIVE_IDLE + _KEEPALIVE_INTERVAL * _KEEPALIVE_PROBES
# Linux has them all; where one is missing, the others do what they can.
_KEEPALIVE_OPTIONS = (
    ("TCP_KEEPIDLE", _KEEPALIVE_IDLE),
    ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL),
    ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
    ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_LIMIT * 1000),
)


_ERRNO = re.compile(r"\[Errno (\d+)\]")


def enable_keepalive(sock: socket.socket) -> None:
    """Let a TCP connection end by itself, with an error, when its peer is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS:
        if (number := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, number, value)


def keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket for one result of `getaddrinfo`: aiohttp's `socket_factory`."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    enable_keepalive(sock)
    return sock


async def dial(
    connection: Connection, *, endpoint: Endpoint, ssl_context: ssl.SSLContext | None
) -> None:
    """Connect, and attach the connection. Raises OSError, FramingError or TransportError."""
    await _dial(connection, endpoint, ssl_context)
    connection.established()


async def _dial(
    connection: Connection, endpoint: Endpoint, ssl_context: ssl.SSLContext | None
) -> None:
    if endpoint.proxy is None:
        context = (ssl_context or ssl.create_default_context()) if endpoint.is_secure else None
        name = endpoint.server_name or endpoint.host
        await _connect(connection, endpoint.host, endpoint.port, context, name)
    elif endpoint.is_secure:
        await _dial_through(connection, endpoint, ssl_context)
    else:
        await _dial_proxy(endpoint, connection)


def request_bytes(endpoint: Endpoint, target: str, headers: HeaderLines) -> bytes:
    """Write the head of a GET. `target` is the path below the endpoint's own, and the query."""
    authority = _authority(endpoint)
    path = f"{endpoint.path}{target}"
    fields = {"Host": authority, "Accept-Encoding": "identity", "Connection": "close"}
    if endpoint.proxy is not None and not endpoint.is_secure:
        path = f"{endpoint.scheme}://{authority}{path}"
        fields |= _proxy_authorization(urlsplit(endpoint.proxy))
    return _head(f"GET {path} HTTP/1.1", (*fields.items(), *headers))


def _head(line: str, fields: HeaderLines) -> bytes:
    lines = [line, *(f"{name}: {value}" for name, value in fields)]
    for text in lines:
        if any(char in text for char in "\r\n\0"):
            raise ValueError(f"{text.split(':')[0]!r} holds a line break: not a valid request")
    if line.count(" ") != 2:
        raise ValueError(f"{line!r} holds a space in its path: not a valid request")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _authority(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def _proxy_authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"}


async def _connect(
    protocol: asyncio.BaseProtocol,
    host: str,
    port: int,
    context: ssl.SSLContext | None,
    server_name: str,
) -> asyncio.Transport:
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: protocol,
            host,
            port,
            ssl=context,
            server_hostname=server_name if context else None,
        )
    except OSError as error:
        # Where a name has several addresses, asyncio tells all their failures in one text.
        if set(_ERRNO.findall(str(error))) == {str(errno.ECONNREFUSED)}:
            raise ConnectionRefusedError(errno.ECONNREFUSED, str(error)) from error
        raise
    if (sock := transport.get_extra_info("socket")) is not None:
        enable_keepalive(sock)
    return transport


async def _dial_proxy(endpoint: Endpoint, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
    proxy = urlsplit(endpoint.proxy or "")
    context = ssl.create_default_context() if proxy.scheme == "https" else None
    host, port = proxy.hostname or "", proxy.port or (443 if proxy.scheme == "https" else 80)
    try:
        return await _connect(protocol, host, port, context, host)
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
    connection: Connection, endpoint: Endpoint, ssl_context: ssl.SSLContext | None
) -> None:
    assert endpoint.proxy is not None
    proxy, authority = urlsplit(endpoint.proxy), _authority(endpoint)
    tunnel = _Tunnel()
    transport = await _dial_proxy(endpoint, tunnel)
    try:
        fields = {"Host": authority, **_proxy_authorization(proxy)}
        transport.write(_head(f"CONNECT {authority} HTTP/1.1", tuple(fields.items())))
        _require_tunnel(endpoint, await tunnel.answer)
        upgraded = await asyncio.get_running_loop().start_tls(
            transport,
            connection,
            ssl_context or ssl.create_default_context(),
            server_hostname=endpoint.server_name or endpoint.host,
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
