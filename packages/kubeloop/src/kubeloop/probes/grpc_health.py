"""The gRPC health check: one `grpc.health.v1.Health/Check` over HTTP/2 without TLS.

One request on one connection needs little of HTTP/2 (RFC 9113): the preface, our settings, one stream, and
answers to SETTINGS and PING. Our settings allow no header table, so of HPACK (RFC 7541) only literals, the
static `:status` entries and the Huffman code of printable characters are needed.

The server is not trusted. A health check's response is a handful of frames; the number of frames, of header
blocks and of bytes is bounded, and so is what is written in answer.
"""

from __future__ import annotations

import asyncio
import struct

from kubeloop.objects.names import url_host
from kubeloop.probes.checks import ProbeOutcome, connection, explain

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_ACK, _END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_STREAM = 1
_NO_HEADER_TABLE = struct.pack(">HI", 1, 0)
_PING_SIZE = 8

_MOST_FRAMES = 32
_MOST_BLOCKS = 3
_MOST_BYTES = 32 * 1024

_STATUSES = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}
_UNIMPLEMENTED = "12"


# The static entries of `:status`, with their values. Other static names are of no interest.
_STATIC_STATUS = {8: "200", 9: "204", 10: "206", 11: "304", 12: "400", 13: "404", 14: "500"}
_STATIC_ENTRIES = 61
_FIELDS = frozenset((":status", "grpc-status", "grpc-message"))
_LONGEST_NAME, _LONGEST_VALUE = 16, 1024
# The printable characters by the length of their codes. The code is canonical: codes of one length
# follow each other in the order of the characters, so the lengths are all of it.
_HUFFMAN_LENGTHS = (
    (5, "012aceiost"),
    (6, " %-./3456789=A_bdfghlmnpru"),
    (7, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, "&*,;XZ"),
    (10, '!"()?'),
    (11, "'+|"),
    (12, "#>"),
    (13, "\0$@[]~"),
    (14, "^}"),
    (15, "<`{"),
    (19, "\\"),
)


async def grpc_check(
    host: str, port: int, *, service: str, timeout: float, agent: str
) -> ProbeOutcome:
    """Ask once whether a service is SERVING."""
    authority = f"{url_host(host)}:{port}"
    connected = False
    try:
        async with asyncio.timeout(timeout), connection(host, port) as (reader, writer):
            connected = True
            writer.write(_request(authority, service, agent))
            return _judge(await _HealthCall(reader, writer).response())
    except TimeoutError:
        text = f"timeout: health rpc did not complete within {timeout:g}s"
        if not connected:
            text = f'timeout: failed to connect service "{authority}" within {timeout:g}s: context deadline exceeded'
        return ProbeOutcome(healthy=False, message=text)
    except (OSError, EOFError, ValueError) as error:
        why = explain(error) if isinstance(error, OSError) else str(error) or "EOF"
        text = f'error: failed to connect service at "{authority}": {why}'
        return ProbeOutcome(healthy=False, message=text)


class _HealthCall:
    """Reads one response, within its bounds."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._fields: dict[str, str] = {}
        self._body = b""
        self._block = b""
        self._blocks = 0
        self._ends = False

    async def response(self) -> tuple[dict[str, str], bytes]:
        """Return headers and trailers, and the body. Raises ValueError for anything else."""
        left = _MOST_BYTES
        for _ in range(_MOST_FRAMES):
            head = await self._reader.readexactly(9)
            size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            left -= size
            if left < 0:
                raise ValueError("the response is too long, or not HTTP/2")
            payload = await self._reader.readexactly(size)
            if await self._take(kind, flags, payload):
                return self._fields, self._body
        raise ValueError(f"the response has more than {_MOST_FRAMES} frames")

    async def _take(self, kind: int, flags: int, payload: bytes) -> bool:
        """Take a frame; True when it is the last one of the stream."""
        if kind == _SETTINGS and not flags & _ACK:
            await self._answer(_SETTINGS, b"")
        elif kind == _PING and not flags & _ACK:
            if len(payload) != _PING_SIZE:
                raise ValueError(f"a PING of {len(payload)} bytes; it must have {_PING_SIZE}")
            await self._answer(_PING, payload)
        elif kind in (_RST_STREAM, _GOAWAY):
            raise ValueError("the stream was closed by the server")
        elif kind == _DATA:
            self._body += _unpadded(flags, payload)
            return bool(flags & _END_STREAM)
        elif kind == _HEADERS:
            payload = _unpadded(flags, payload)
            self._block = payload[5:] if flags & _PRIORITY else payload
            self._ends = bool(flags & _END_STREAM)
            return self._finish_block(flags)
        elif kind == _CONTINUATION:
            self._block += payload
            return self._finish_block(flags)
        return False

    def _finish_block(self, flags: int) -> bool:
        if not flags & _END_HEADERS:
            return False
        # One block before the message and one after it; one more for a 1xx.
        self._blocks += 1
        if self._blocks > _MOST_BLOCKS:
            raise ValueError(f"the response has more than {_MOST_BLOCKS} header blocks")
        self._fields |= decode_block(self._block)
        return self._ends

    async def _answer(self, kind: int, payload: bytes) -> None:
        self._writer.write(_frame(kind, _ACK, 0, payload))
        # A server that sends and never reads gets no further than the socket's buffers.
        await self._writer.drain()


def _judge(response: tuple[dict[str, str], bytes]) -> ProbeOutcome:
    fields, body = response
    code, text = fields.get("grpc-status", ""), fields.get("grpc-message", "")
    if code == _UNIMPLEMENTED:
        why = "error: this server does not implement the grpc health protocol"
        return ProbeOutcome(healthy=False, message=f"{why} (grpc.health.v1.Health): {text}")
    if code != "0":
        why = f"rpc error: code = {code or fields.get(':status', '?')} desc = {text}"
        return ProbeOutcome(healthy=False, message=f"error: health rpc probe failed: {why}")
    # The message stands behind five bytes of framing; an absent field means UNKNOWN.
    message = body[5:]
    status = message[1] if len(message) >= 2 and message[0] == 0x08 else 0
    shown = _STATUSES.get(status, str(status))
    if shown != "SERVING":
        return ProbeOutcome(healthy=False, message=f'service unhealthy (responded with "{shown}")')
    return ProbeOutcome(healthy=True, message="service healthy")


# Written: every field of the request as a literal, so that no table is needed.


def _request(authority: str, service: str, agent: str) -> bytes:
    fields = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", agent),
    )
    block = b"".join(b"\x00" + _literal(name) + _literal(value) for name, value in fields)
    name = service.encode()
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    body = b"\x00" + struct.pack(">I", len(message)) + message
    return b"".join(
        (
            _PREFACE,
            _frame(_SETTINGS, 0, 0, _NO_HEADER_TABLE),
            _frame(_HEADERS, _END_HEADERS, _STREAM, block),
            _frame(_DATA, _END_STREAM, _STREAM, body),
        )
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(text: str) -> bytes:
    data = text.encode()
    size = bytes((len(data),)) if len(data) < 0x7F else b"\x7f" + _varint(len(data) - 0x7F)
    return size + data


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*encoded, number))


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload:
        raise ValueError("a padded frame without its length")
    return payload[1 : len(payload) - payload[0]]


# Read: RFC 7541, sections 5 and 6, without a dynamic table.


def _huffman_codes() -> dict[tuple[int, int], str]:
    codes = {}
    code = length = 0
    for size, characters in _HUFFMAN_LENGTHS:
        code <<= size - length
        length = size
        for character in characters:
            codes[length, code] = character
            code += 1
    return codes


_HUFFMAN = _huffman_codes()


def decode_block(block: bytes) -> dict[str, str]:
    """Return those fields of a header block that say how a call ended.

    Raises ValueError if it is malformed or refers to a header table that was not allowed.
    """
    fields: dict[str, str] = {}
    at = 0
    while at < len(block):
        first = block[at]
        if first & 0x80:
            index, at = _integer(block, at, 0x7F)
            name, value = _static_name(index), _STATIC_STATUS.get(index, "")
        elif first & 0xE0 == 0x20:  # a change of the table's size: we have no table
            _, at = _integer(block, at, 0x1F)
            continue
        else:
            index, at = _integer(block, at, 0x3F if first & 0x40 else 0x0F)
            if index:
                name = _static_name(index)
            else:
                name, at = _string(block, at, longest=_LONGEST_NAME)
            # Fields of no interest are skipped, not decoded: decoding is what a server could make dear.
            value, at = _string(block, at, longest=_LONGEST_VALUE if name in _FIELDS else 0)
        if name in _FIELDS:
            fields[name] = value
    return fields


def _static_name(index: int) -> str:
    if not 0 < index <= _STATIC_ENTRIES:
        raise ValueError(f"header {index} is of a table that was not allowed")
    return ":status" if index in _STATIC_STATUS else ""


def _integer(block: bytes, at: int, most: int) -> tuple[int, int]:
    """Return an integer whose first byte has the bits of `most`, and where it ends."""
    number, at = _byte(block, at) & most, at + 1
    if number < most:
        return number, at
    for shift in (0, 7, 14):
        byte, at = _byte(block, at), at + 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise ValueError("an integer of a header block is too large")


def _string(block: bytes, at: int, *, longest: int) -> tuple[str, int]:
    """Return a string, empty if it is longer than `longest` bytes, and where it ends."""
    coded = _byte(block, at) & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise ValueError("a header block ends within a field")
    if size > longest:
        return "", end
    data = block[at:end]
    return (_huffman_text(data) if coded else data.decode("latin-1")), end


def _byte(block: bytes, at: int) -> int:
    if at >= len(block):
        raise ValueError("a header block ends within a field")
    return block[at]


def _huffman_text(data: bytes) -> str:
    """Return the text up to the first character that is not printable; the padding is not a character."""
    text: list[str] = []
    code = length = 0
    for byte in data:
        for bit in range(7, -1, -1):
            code, length = code << 1 | byte >> bit & 1, length + 1
            if character := _HUFFMAN.get((length, code)):
                text.append(character)
                code = length = 0
    return "".join(text)
