"""A WebSocket (RFC 6455), as a client has it: binary messages both ways.

Strict: what a server may not send (a masked frame, a reserved bit, text where bytes are due, a message beyond all
measure) is a FramingError.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import struct
from typing import TYPE_CHECKING

from kubeloop.http.framing import FramingError, HttpResponseHead

if TYPE_CHECKING:
    from kubeloop.http.client import HeaderLines
    from kubeloop.http.connection import Connection

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
# Servers send 32 KiB in one message; only a Status may be longer, and not by so much.
_MAX_MESSAGE = 1 << 20
_NORMAL = struct.pack("!H", 1000)


class Upgrade:
    """One request to switch to a WebSocket."""

    def __init__(self, protocols: tuple[str, ...]) -> None:
        self._protocols = protocols
        self._key = base64.b64encode(os.urandom(16))

    def headers(self) -> HeaderLines:
        """Return the request's fields."""
        return (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", self._key.decode("ascii")),
            ("Sec-WebSocket-Protocol", ", ".join(self._protocols)),
        )

    def accept(self, connection: Connection, head: HttpResponseHead) -> WebSocket:
        """Return the socket that a 101 opens. Raises FramingError for any other."""
        # SHA-1 is the protocol's, and protects nothing.
        digest = hashlib.sha1(self._key + _GUID, usedforsecurity=False).digest()
        if head.values("sec-websocket-accept") != [base64.b64encode(digest).decode("ascii")]:
            raise FramingError("the server's handshake does not fit the request")
        chosen = head.values("sec-websocket-protocol")
        if len(chosen) != 1 or chosen[0] not in self._protocols:
            raise FramingError(f"the server speaks none of {', '.join(self._protocols)}")
        return WebSocket(connection, chosen[0])


class WebSocket:
    """An open socket. One task receives; any may send."""

    def __init__(self, connection: Connection, protocol: str) -> None:
        self.protocol = protocol
        self._connection = connection
        self._buffer = bytearray()

    async def send(self, data: bytes) -> None:
        """Send a message; waits while the peer does not keep up. Raises ConnectionError."""
        self._write(_BINARY, data)
        await self._connection.drain()

    async def receive(self) -> bytes | None:
        """Return the next message; None after the peer's goodbye. Raises FramingError, OSError.

        A call that is cancelled between two messages loses nothing.
        """
        message = b""
        while True:
            is_last, opcode, data = await self._frame()
            if opcode == _PING:
                self._write(_PONG, data)
            elif opcode == _CLOSE:
                return None
            elif opcode == _TEXT:
                raise FramingError(f"TEXT: {data[:200].decode(errors='replace')}")
            elif opcode in (_CONTINUATION, _BINARY):
                message += data
                if len(message) > _MAX_MESSAGE:
                    raise FramingError(f"Message size above {_MAX_MESSAGE} bytes")
                if is_last:
                    return message
            elif opcode != _PONG:
                raise FramingError(f"a frame of unknown kind {opcode}")

    async def close(self) -> None:
        """Say goodbye, and free the connection at once."""
        self._write(_CLOSE, _NORMAL)
        try:
            with contextlib.suppress(OSError):
                await self._connection.drain()
        finally:
            await self._connection.close()

    async def _frame(self) -> tuple[bool, int, bytes]:
        await self._fill(2)
        first, length = self._buffer[0], self._buffer[1]
        start = 2
        if first & 0x70 or length & 0x80:
            raise FramingError("a frame with reserved bits or a mask")
        if length > 125:
            start = 4 if length == 126 else 10
            await self._fill(start)
            length = int.from_bytes(self._buffer[2:start], "big")
        if length > _MAX_MESSAGE:
            raise FramingError(f"Message size above {_MAX_MESSAGE} bytes")
        await self._fill(start + length)
        data = bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return bool(first & 0x80), first & 0x0F, data

    async def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            if not (data := await self._connection.read()):
                raise self._connection.error or ConnectionResetError("")
            self._buffer += data

    def _write(self, opcode: int, data: bytes) -> None:
        size, mask = len(data), os.urandom(4)
        if size <= 125:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
        else:
            head = struct.pack("!BBH", 0x80 | opcode, 0xFE, size)
        # One big number is masked at C speed.
        number = int.from_bytes(data, "big") ^ int.from_bytes(
            (mask * (size // 4 + 1))[:size], "big"
        )
        self._connection.write(head + mask + number.to_bytes(size, "big"))
