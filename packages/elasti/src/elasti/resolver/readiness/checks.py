"""The checks on the network: does a port accept, does an HTTP, TCP or gRPC probe pass.

Nothing of a response is kept and none of it is trusted: a few bytes tell yes or no, in bounded time.
Certificates are not verified, as the kubelet does not: the probe asks whether the pod serves, and tells it
nothing. One `grpc.health.v1.Health/Check` on one connection needs little of HTTP/2: the preface, our
settings, one stream, and answers to SETTINGS and PING.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import functools
import re
import ssl
import struct
from typing import TYPE_CHECKING, Protocol

import hpack

from elasti.resolver.readiness.plan import GrpcProbe, HttpGetProbe, PlannedProbe, TcpSocketProbe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from elasti.resolver.proxy.upstream.interface import UpstreamAddress


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_ACK, _END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_LARGEST = 64 * 1024
_SERVING = b"\x08\x01"


async def is_serving(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, host: str, service: str
) -> bool:
    """Ask whether a service is SERVING. Raises ValueError or EOFError where nobody speaks gRPC."""
    writer.write(_health_request(host, service))
    answer = _HealthResponse(writer)
    try:
        while not answer.complete:
            head = await reader.readexactly(9)
            size = int.from_bytes(head[:3], "big")
            if size > _LARGEST:
                raise ValueError("the answer is not HTTP/2")
            answer.take(head[3], head[4], await reader.readexactly(size))
    except hpack.HPACKError as error:
        raise ValueError(str(error)) from error
    # The message stands behind five bytes of framing; an absent field means UNKNOWN.
    return answer.fields.get("grpc-status") == "0" and answer.body[5:7] == _SERVING


class _HealthResponse:
    """What came back so far."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.fields: dict[str, str] = {}
        self.body = b""
        self.complete = False
        self._writer = writer
        self._decoder = hpack.Decoder()
        self._block = b""
        self._last = False

    def take(self, kind: int, flags: int, payload: bytes) -> None:
        """Take a frame. Raises ValueError where the server gives up."""
        if kind == _SETTINGS and not flags & _ACK:
            self._writer.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._writer.write(_frame(_PING, _ACK, 0, payload))
        elif kind in (_RST_STREAM, _GOAWAY):
            raise ValueError("the server closed the stream")
        elif kind == _DATA:
            self.body = (self.body + _unpadded(flags, payload))[:_LARGEST]
            self.complete = bool(flags & _END_STREAM)
        elif kind in (_HEADERS, _CONTINUATION):
            self._take_block(kind, flags, payload)

    def _take_block(self, kind: int, flags: int, payload: bytes) -> None:
        if kind == _HEADERS:
            payload = _unpadded(flags, payload)
            self._block = payload[5:] if flags & _PRIORITY else payload
            self._last = bool(flags & _END_STREAM)
        else:
            self._block += payload
        if len(self._block) > _LARGEST:
            raise ValueError("the headers are too long")
        if flags & _END_HEADERS:
            self.fields |= {
                str(name): str(value) for name, value in self._decoder.decode(self._block)
            }
            self.complete = self._last


def _health_request(host: str, service: str) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", host),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "kube-probe/elasti"),
    ]
    name = service.encode()[:127]
    message = bytes((0x0A, len(name))) + name if name else b""
    body = b"\x00" + struct.pack(">I", len(message)) + message
    return b"".join(
        (
            _PREFACE,
            _frame(_SETTINGS, 0, 0, b""),
            _frame(_HEADERS, _END_HEADERS, 1, hpack.Encoder().encode(fields)),
            _frame(_DATA, _END_STREAM, 1, body),
        )
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _unpadded(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & _PADDED and payload else payload


_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r\n]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AGENT = "kube-probe/elasti"
_REACHED = frozenset((errno.ECONNREFUSED, errno.ECONNRESET))


class Reachability(enum.Enum):
    """What a connection attempt showed."""

    ACCEPTED = "accepted"
    # The pod's machine answered: nothing listens yet.
    REFUSED = "refused"
    # Nobody answered: no route, or a policy drops us.
    UNREACHABLE = "unreachable"


class PodChecks(Protocol):
    """How pods are asked."""

    async def connect(self, address: UpstreamAddress, *, timeout: float) -> Reachability:
        """Try one connection."""

    async def ask(self, host: str, question: PlannedProbe) -> bool:
        """Ask one probe of the pod at an address, once."""


class NetworkChecks:
    """Asks over the network."""

    async def connect(self, address: UpstreamAddress, *, timeout: float) -> Reachability:
        """Try one connection; it is closed at once."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, _ = await loop.create_connection(asyncio.Protocol, *address)
        except TimeoutError:
            return Reachability.UNREACHABLE
        except OSError as error:
            return Reachability.REFUSED if error.errno in _REACHED else Reachability.UNREACHABLE
        transport.abort()
        return Reachability.ACCEPTED

    async def ask(self, host: str, question: PlannedProbe) -> bool:
        """Ask one probe, within its own timeout."""
        try:
            async with asyncio.timeout(question.timeout):
                return await self._ask(host, question)
        except (OSError, EOFError, TimeoutError, ValueError):
            return False

    async def _ask(self, host: str, question: PlannedProbe) -> bool:
        match question.action:
            case TcpSocketProbe():
                async with _connection(host, question.port):
                    return True
            case GrpcProbe(service=service):
                async with _connection(host, question.port) as (reader, writer):
                    return await is_serving(reader, writer, host=host, service=service or "")
            case HttpGetProbe() as action:
                return await _get(action, host, question.port)


@contextlib.asynccontextmanager
async def _connection(
    host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=16 * 1024)
    try:
        yield reader, writer
    finally:
        # Nothing that was sent still matters, and a graceful end would only keep a socket.
        writer.transport.abort()


async def _get(action: HttpGetProbe, host: str, port: int) -> bool:
    tls = _unverified() if action.scheme.upper() == "HTTPS" else None
    async with _connection(host, port, tls=tls) as (reader, writer):
        writer.write(_request(action, host, port))
        found = _STATUS.match(await reader.readline())
        return found is not None and 200 <= int(found[1]) < 400


def _request(action: HttpGetProbe, host: str, port: int) -> bytes:
    """Return the request. Raises ValueError for a path or header that would be another request."""
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    shown = f"[{host}]" if ":" in host else host
    fields = {"host": ("Host", f"{shown}:{port}"), "user-agent": ("User-Agent", _AGENT)}
    fields |= {item.name.lower(): (item.name, item.value) for item in action.http_headers}
    fields["connection"] = ("Connection", "close")
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.values())]
    if any(_CONTROL.search(line) for line in lines) or " " in path:
        raise ValueError("the probe's path or headers cannot be sent")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@functools.cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
