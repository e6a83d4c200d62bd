"""On a shared port, an h2 connection belongs to the Service of its first request.

Clients may send requests for other authorities on the same connection (RFC 9113, 9.1.1). These get 421
(Misdirected Request) and are not forwarded. So every header block is read, and forwarded blocks are encoded
again, since each may depend on those before it.
"""

from __future__ import annotations

from collections.abc import Callable

from elasti.resolver.proxy.h2.frames import (
    BLOCKS,
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    HEADER_SIZE,
    MAX_BLOCK,
    NO_ERROR,
    PREFACE,
    PUSH_PROMISE,
    H2Error,
    H2FloodGuard,
    H2Frame,
    header_at,
    refusal_frames,
    rst_stream,
    window_update,
)
from elasti.resolver.proxy.h2.held import H2Request, HeaderBlockRecoder
from elasti.resolver.proxy.upstream.interface import RequestFacts

# Each refused stream is remembered, and a client that ignores this many does not listen.
_MAX_REFUSED = 100
_MISDIRECTED = 421
_MESSAGE = "this connection belongs to another Service; open a new one"


class AuthorityFilter:
    """Forwards the frames of streams that `accepts` accepts; header blocks only as a whole."""

    __slots__ = (
        "_accepts", "_drops", "_flood", "_in_block", "_last", "_left", "_recoder", "_refused",
        "_replies", "_rest",
    )  # fmt: skip

    def __init__(self, accepts: Callable[[RequestFacts], bool], flood: H2FloodGuard) -> None:
        self._accepts = accepts
        self._flood = flood
        self._recoder = HeaderBlockRecoder()
        self._rest = b""
        # Bytes left of the preface or of a frame, and whether they are dropped.
        self._left, self._drops = len(PREFACE), False
        self._in_block = False
        self._last = 0
        self._refused: set[int] = set()
        self._replies: list[bytes] = []

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes to forward and the replies to the client. Raises H2Error."""
        self._recoder.begin_read()
        data = self._rest + data
        passed, at, size = [], 0, len(data)
        while at < size:
            if self._left:
                piece = data[at : at + self._left]
                if not self._drops:
                    passed.append(piece)
                self._left -= len(piece)
                at += len(piece)
                continue
            if size - at < HEADER_SIZE:
                break
            found = header_at(data, at)
            if not self._in_block and found.kind not in BLOCKS:
                self._begin(found)
                continue
            if found.length > MAX_BLOCK:
                raise H2Error("a header block frame is larger than 64 KiB")
            if found.end > size:
                break
            passed.append(self._block_part(found, data[at + HEADER_SIZE : found.end]))
            at = found.end
        self._rest = data[at:]
        replies = b"".join(self._replies)
        self._replies.clear()
        return b"".join(passed), replies

    def _begin(self, found: H2Frame) -> None:
        self._left = HEADER_SIZE + found.length
        self._drops = found.stream in self._refused
        if self._drops and found.kind == DATA and found.length:
            # The pod never sees it, so it cannot extend the client's window.
            self._replies.append(window_update(found.length))
        elif self._drops:
            self._flood.count()

    def _block_part(self, found: H2Frame, payload: bytes) -> bytes:
        if found.kind == PUSH_PROMISE:
            raise H2Error("a client sent PUSH_PROMISE")
        if found.kind == CONTINUATION:
            self._flood.count()
        decoded = self._recoder.decode(found, payload)
        self._in_block = decoded is None
        if decoded is None:
            return b""
        block, fields = decoded
        request = H2Request.of(block.stream, fields)
        if block.stream > self._last:
            self._last = block.stream
            if not self._accepts(request):
                self._refuse(request)
        elif any(name.startswith(b":") for name in request.fields):
            # Trailers are plain fields: a pod that does not mind the order would take this for a request.
            raise H2Error("a stream begins below another, or twice")
        return b"" if block.stream in self._refused else self._recoder.write(block, fields)

    def _refuse(self, request: H2Request) -> None:
        self._flood.count()
        if len(self._refused) >= _MAX_REFUSED:
            raise H2Error("too many streams for other authorities", ENHANCE_YOUR_CALM)
        self._refused.add(request.stream)
        answer = refusal_frames(request.stream, _MISDIRECTED, _MESSAGE, grpc=request.is_grpc)
        self._replies += (answer, rst_stream(request.stream, NO_ERROR))
