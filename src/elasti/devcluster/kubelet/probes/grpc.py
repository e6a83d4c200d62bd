"""gRPC probes: `grpc.health.v1.Health/Check` over HTTP/2 without TLS.

One request on one connection needs little of HTTP/2: the preface, our settings, one stream, and
answers to SETTINGS and PING. Header blocks are hpack's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

import hpack

from elasti.devcluster.kubelet.probes.outcome import Outcome, seconds
from elasti.devcluster.kubelet.probes.tcp import explain

if TYPE_CHECKING:
    from elasti.devcluster.kubelet.objects.containers import Grpc

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


async def check(action: Grpc, *, address: str, timeout: float, agent: str) -> Outcome:
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
            text = f'timeout: failed to connect service "{place}" within {seconds(timeout)}'
            return Outcome(healthy=False, message=f"{text}: context deadline exceeded")
        text = f"timeout: health rpc did not complete within {seconds(timeout)}"
        return Outcome(healthy=False, message=text)
    except (OSError, EOFError, _Broken, hpack.HPACKError) as error:
        why = explain(error) if isinstance(error, OSError) else str(error) or "EOF"
        text = f'error: failed to connect service at "{place}": {why}'
        return Outcome(healthy=False, message=text)
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

    def judge(self, headers: dict[str, str], body: bytes) -> Outcome:
        """Say what the answer means."""
        code, text = headers.get("grpc-status", ""), headers.get("grpc-message", "")
        if code != "0":
            if code == str(_UNIMPLEMENTED):
                why = "error: this server does not implement the grpc health protocol"
                return Outcome(healthy=False, message=f"{why} (grpc.health.v1.Health): {text}")
            why = f"rpc error: code = {code or headers.get(':status', '?')} desc = {text}"
            return Outcome(healthy=False, message=f"error: health rpc probe failed: {why}")
        status = _status(body)
        if status != _SERVING:
            shown = _STATUSES.get(status, str(status))
            return Outcome(healthy=False, message=f'service unhealthy (responded with "{shown}")')
        return Outcome(healthy=True, message="service healthy")


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
