"""One `grpc.health.v1.Health/Check` over HTTP/2 without TLS.

One request on one connection needs little of HTTP/2: the preface, our settings, one stream, and
answers to SETTINGS and PING.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import hpack

if TYPE_CHECKING:
    import asyncio

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_ACK, _END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_LARGEST = 64 * 1024
_SERVING = b"\x08\x01"


async def is_serving(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, host: str, service: str
) -> bool:
    """Ask whether a service is SERVING. Raises ValueError or EOFError where nobody speaks gRPC."""
    writer.write(_request(host, service))
    answer = _Answer(writer)
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


class _Answer:
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


def _request(host: str, service: str) -> bytes:
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
