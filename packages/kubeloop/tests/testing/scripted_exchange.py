"""One request on a real connection, and full control over the bytes that answer it.

The scripted server reads a request whole, then hands an `Exchange` to the scripted answer. The
answer may be well behaved (`respond`), stream (`start`, `chunk`, `finish`) or misbehave (`raw`,
`reset`, `close`, or nothing at all until `client_left`). What the server cannot tell apart from a
healthy end is never reused: only `respond` and `finish` leave the connection open for a next
request, unless the client or the answer said `Connection: close`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import struct
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD_LIMIT = 1 << 20
_REASONS = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    204: "No Content",
    301: "Moved Permanently",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    409: "Conflict",
    410: "Gone",
    422: "Unprocessable Entity",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A request as it arrived.

    `path` is decoded and without the query, `target` is what the request line said. Header names
    are lower case; a header sent more than once has its values in `header_list`.
    """

    method: str
    target: str
    path: str
    query: Mapping[str, str]
    header_list: tuple[tuple[str, str], ...]
    body: bytes
    connection: int
    client_certificate: Mapping[str, Any] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers; of repeated ones the last."""
        return dict(self.header_list)

    def header_values(self, name: str) -> list[str]:
        """Return every value of a header, in order."""
        return [value for key, value in self.header_list if key == name.lower()]

    def json(self) -> Any:
        """Return the decoded JSON body."""
        return json.loads(self.body)

    def __str__(self) -> str:
        return f"{self.method} {self.target}"


class NoticingReader(asyncio.StreamReader):
    """A stream reader that notices when the peer has left, without a read."""

    def __init__(self) -> None:
        super().__init__(limit=_HEAD_LIMIT)
        self.left = asyncio.Event()

    def feed_eof(self) -> None:
        """Note the end of the peer's bytes."""
        super().feed_eof()
        self.left.set()

    def set_exception(self, exc: Exception) -> None:
        """Note that the connection was lost."""
        super().set_exception(exc)
        self.left.set()


class Exchange:
    """The answer to one request, byte by byte if need be."""

    def __init__(
        self, request: RecordedRequest, *, reader: NoticingReader, writer: asyncio.StreamWriter
    ) -> None:
        self.request = request
        self._reader = reader
        self._writer = writer
        self._may_stay = request.headers.get("connection", "").lower() != "close"
        self.answered = False
        self.reusable = False

    async def respond(
        self,
        status: int = 200,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> None:
        """Send a whole answer with its length."""
        fields = {"Content-Type": content_type, "Content-Length": str(len(body))}
        fields.update(headers or {})
        await self.raw(_head(status, fields) + body)
        self.reusable = self._may_stay and fields.get("Connection", "").lower() != "close"

    async def respond_json(
        self, obj: object, status: int = 200, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an object as JSON."""
        await self.respond(status, body=json.dumps(obj).encode(), headers=headers)

    async def start(self, status: int = 200, *, headers: Mapping[str, str] | None = None) -> None:
        """Send the head of a chunked answer."""
        fields = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        await self.raw(_head(status, fields | dict(headers or {})))

    async def chunk(self, data: bytes) -> None:
        """Send one chunk; an empty one would end the body and is left out."""
        if data:
            await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def finish(self) -> None:
        """Send the last chunk."""
        await self.raw(b"0\r\n\r\n")
        self.reusable = self._may_stay

    async def raw(self, data: bytes) -> None:
        """Send bytes as they are, outside of any framing."""
        self.answered = True
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        """Close the connection in the ordinary way, wherever the answer is."""
        self.answered = True
        self.reusable = False
        self._writer.close()

    def reset(self) -> None:
        """Make the client see `connection reset by peer`."""
        self.answered = True
        self.reusable = False
        reset_connection(self._writer)

    async def client_left(self) -> None:
        """Wait until the client closed or lost the connection."""
        await self._reader.left.wait()
        self.answered = True


def reset_connection(writer: asyncio.StreamWriter) -> None:
    """Drop a connection so that the peer sees a reset instead of an end."""
    # A TLS transport of Python 3.11 that was closed twice has forgotten its socket. In its early
    # releases it cannot be aborted then, either, and ends by itself.
    with contextlib.suppress(OSError, AttributeError):
        if (sock := writer.get_extra_info("socket")) is not None:
            linger_not(sock)
    with contextlib.suppress(AttributeError):
        writer.transport.abort()


def linger_not(sock: socket.socket) -> None:
    """Make the close of a socket a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def read_request(
    reader: NoticingReader, writer: asyncio.StreamWriter, connection: int
) -> RecordedRequest | None:
    """Read the next request of a connection; None where the client has gone instead."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = tuple(_header(line) for line in lines[1:] if line)
        body = await _read_body(reader, writer, dict(headers))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    path, _, query = target.partition("?")
    return RecordedRequest(
        method=method,
        target=target,
        path=unquote(path),
        query=dict(parse_qsl(query, keep_blank_values=True)),
        header_list=headers,
        body=body,
        connection=connection,
        client_certificate=writer.get_extra_info("peercert"),
    )


async def _read_body(
    reader: NoticingReader, writer: asyncio.StreamWriter, headers: Mapping[str, str]
) -> bytes:
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        return await reader.readexactly(int(headers.get("content-length", "0")))
    pieces: list[bytes] = []
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(pieces)


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Scripted')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
