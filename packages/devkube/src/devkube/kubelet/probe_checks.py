"""HTTP, TCP and gRPC checks, and what one finds.

HTTP: a GET that must be answered with 2xx or 3xx. TCP: a connection that must be accepted. gRPC:
`grpc.health.v1.Health/Check` over HTTP/2 without TLS; one request on one connection needs little of
HTTP/2: the preface, our settings, one stream, and answers to SETTINGS and PING. Header blocks are hpack's
business.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import struct
from typing import TYPE_CHECKING

import aiohttp
import hpack
from multidict import CIMultiDict
from yarl import URL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from devkube.kubelet.container_types import (
        ContainerSpec,
        GrpcAction,
        HttpGetAction,
        PortOrName,
        TcpSocketAction,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Healthy or not, and what to say about it; a `warning` is healthy and worth a word."""

    healthy: bool
    message: str = ""
    warning: bool = False


class ProbeError(Exception):
    """A probe that cannot be made as it is written; its result does not count."""


def port_number(port: PortOrName, container: ContainerSpec) -> int:
    """Return a port's number. Raises ProbeError for a name that the container does not have."""
    if isinstance(port, str):
        named = {item.name: item.container_port for item in container.ports if item.name}
        number = named.get(port, int(port) if port.isdecimal() else 0)
    else:
        number = port
    if not 0 < number < 65536:
        raise ProbeError(f"invalid port number: {port}")
    return number


def format_timeout(timeout: float) -> str:
    """Write a timeout as messages do."""
    return f"{timeout:g}s"


async def tcp_connect(
    action: TcpSocketAction, container: ContainerSpec, *, address: str, timeout: float
) -> ProbeOutcome:
    """Connect once. Raises ProbeError where the port has no number."""
    host, port = action.host or address, port_number(action.port, container)
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return ProbeOutcome(healthy=False, message=f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return ProbeOutcome(
            healthy=False, message=f"dial tcp {host}:{port}: {explain_refusal(error)}"
        )
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ProbeOutcome(healthy=True)


def explain_refusal(error: OSError) -> str:
    """Say what went wrong in the words that users of Kubernetes know."""
    if error.errno is None or error.errno < 0:
        return str(error).lower()
    return f"connect: {os.strerror(error.errno).lower()}"


_REDIRECTS = 10
_LONGEST_BODY = 10 * 1024
_FOLLOWED = (301, 302, 303, 307, 308)


@contextlib.asynccontextmanager
async def http_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Open what probes are sent with: no cookies, no kept connections, any certificate."""
    connector = aiohttp.TCPConnector(ssl=False, force_close=True, limit=0)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:
        yield session


async def http_get(
    session: aiohttp.ClientSession,
    action: HttpGetAction,
    container: ContainerSpec,
    *,
    address: str,
    timeout: float,
    agent: str,
) -> ProbeOutcome:
    """Send one GET. Raises ProbeError where the port has no number."""
    url = _url(action, action.host or address, port_number(action.port, container))
    limit = aiohttp.ClientTimeout(total=timeout)
    try:
        return await _follow(session, url, headers=_headers(action, agent), limit=limit)
    except TimeoutError:
        text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        return ProbeOutcome(healthy=False, message=f'Get "{url}": {text}')
    except (aiohttp.ClientError, ValueError) as error:
        return ProbeOutcome(healthy=False, message=f'Get "{url}": {_explain(error, url)}')


async def _follow(
    session: aiohttp.ClientSession,
    url: URL,
    *,
    headers: CIMultiDict[str],
    limit: aiohttp.ClientTimeout,
) -> ProbeOutcome:
    host = url.host
    for _ in range(_REDIRECTS):
        async with session.get(
            url, headers=headers, timeout=limit, allow_redirects=False
        ) as answer:
            place = answer.headers.get("Location", "")
            if answer.status in _FOLLOWED and place:
                url = url.join(URL(place))
                if url.host == host:
                    continue
            return await _judge(answer)
    return ProbeOutcome(healthy=False, message=f'Get "{url}": stopped after 10 redirects')


async def _judge(answer: aiohttp.ClientResponse) -> ProbeOutcome:
    if not 200 <= answer.status < 400:
        return ProbeOutcome(
            healthy=False, message=f"HTTP probe failed with statuscode: {answer.status}"
        )
    body = await answer.content.read(_LONGEST_BODY)
    text = body.decode(errors="replace")
    if answer.status >= 300:
        message = f"Probe terminated redirects, Response body: {text}"
        return ProbeOutcome(healthy=True, message=message, warning=True)
    return ProbeOutcome(healthy=True, message=text)


def _url(action: HttpGetAction, host: str, port: int) -> URL:
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    shown = f"[{host}]" if ":" in host else host
    return URL(f"{action.scheme.lower()}://{shown}:{port}{path}", encoded=True)


def _headers(action: HttpGetAction, agent: str) -> CIMultiDict[str]:
    headers: CIMultiDict[str] = CIMultiDict((item.name, item.value) for item in action.http_headers)
    headers.setdefault("User-Agent", agent)
    headers.setdefault("Accept", "*/*")
    if not headers["Accept"]:
        del headers["Accept"]
    return headers


def _explain(error: Exception, url: URL) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"dial tcp {url.host}:{url.port}: {explain_refusal(error.os_error)}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error) or type(error).__name__


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_ACK, _END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_STREAM = 1
_LARGEST_FRAME = 1 << 20
_STATUSES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_SERVING = 1
_UNIMPLEMENTED = 12


class _Broken(Exception):
    """The server does not speak HTTP/2, or gave the stream up."""


async def grpc_check(
    action: GrpcAction, *, address: str, timeout: float, agent: str
) -> ProbeOutcome:
    """Ask once."""
    place = f"{address}:{action.port}"
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(address, action.port)
            call = _Call(reader, writer)
            await call.send(place, action.service or "", agent)
            return call.judge(*await call.answer())
    except TimeoutError:
        if writer is None:
            text = f'timeout: failed to connect service "{place}" within {format_timeout(timeout)}'
            return ProbeOutcome(healthy=False, message=f"{text}: context deadline exceeded")
        text = f"timeout: health rpc did not complete within {format_timeout(timeout)}"
        return ProbeOutcome(healthy=False, message=text)
    except (OSError, EOFError, _Broken, hpack.HPACKError) as error:
        why = explain_refusal(error) if isinstance(error, OSError) else str(error) or "EOF"
        text = f'error: failed to connect service at "{place}": {why}'
        return ProbeOutcome(healthy=False, message=text)
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _Call:
    """One request and its answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._headers: dict[str, str] = {}
        self._body = b""
        self._block = b""
        self._decoder = hpack.Decoder()

    async def send(self, authority: str, service: str, agent: str) -> None:
        """Send the request."""
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/grpc.health.v1.Health/Check"),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", agent),
        ]
        name = service.encode()
        message = b"\x0a" + _varint(len(name)) + name if name else b""
        self._writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        self._writer.write(_frame(_HEADERS, _END_HEADERS, _STREAM, hpack.Encoder().encode(fields)))
        body = b"\x00" + struct.pack(">I", len(message)) + message
        self._writer.write(_frame(_DATA, _END_STREAM, _STREAM, body))
        await self._writer.drain()

    async def answer(self) -> tuple[dict[str, str], bytes]:
        """Return the headers, trailers among them, and the body."""
        while True:
            head = await self._reader.readexactly(9)
            size = int.from_bytes(head[:3], "big")
            kind, flags = head[3], head[4]
            if size > _LARGEST_FRAME:
                raise _Broken("the answer is not HTTP/2")
            payload = await self._reader.readexactly(size)
            if self._take(kind, flags, payload):
                return self._headers, self._body

    def _take(self, kind: int, flags: int, payload: bytes) -> bool:
        """Take a frame; True when it is the last one of the stream."""
        match kind:
            case k if k == _SETTINGS and not flags & _ACK:
                self._writer.write(_frame(_SETTINGS, _ACK, 0, b""))
            case k if k == _PING and not flags & _ACK:
                self._writer.write(_frame(_PING, _ACK, 0, payload))
            case k if k in (_RST_STREAM, _GOAWAY):
                raise _Broken("the stream was closed by the server")
            case k if k == _DATA:
                self._body += _unpadded(flags, payload)
                return bool(flags & _END_STREAM)
            case k if k in (_HEADERS, _CONTINUATION):
                return self._take_headers(kind, flags, payload)
        return False

    def _take_headers(self, kind: int, flags: int, payload: bytes) -> bool:
        if kind == _HEADERS:
            payload = _unpadded(flags, payload)
            self._block = payload[5:] if flags & _PRIORITY else payload
            self._ends = bool(flags & _END_STREAM)
        else:
            self._block += payload
        if not flags & _END_HEADERS:
            return False
        for name, value in self._decoder.decode(self._block):
            self._headers[str(name)] = str(value)
        return self._ends

    def judge(self, headers: dict[str, str], body: bytes) -> ProbeOutcome:
        """Say what the answer means."""
        code, text = headers.get("grpc-status", ""), headers.get("grpc-message", "")
        if code != "0":
            if code == str(_UNIMPLEMENTED):
                why = "error: this server does not implement the grpc health protocol"
                return ProbeOutcome(healthy=False, message=f"{why} (grpc.health.v1.Health): {text}")
            why = f"rpc error: code = {code or headers.get(':status', '?')} desc = {text}"
            return ProbeOutcome(healthy=False, message=f"error: health rpc probe failed: {why}")
        status = _status(body)
        if status != _SERVING:
            shown = _STATUSES.get(status, str(status))
            return ProbeOutcome(
                healthy=False, message=f'service unhealthy (responded with "{shown}")'
            )
        return ProbeOutcome(healthy=True, message="service healthy")


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    return payload[1 : len(payload) - payload[0]]


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def _status(body: bytes) -> int:
    """Read field 1 of a HealthCheckResponse; absent means unknown."""
    message = body[5:]
    return message[1] if len(message) >= 2 and message[0] == 0x08 else 0
