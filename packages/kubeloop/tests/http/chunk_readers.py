"""Chunked bodies as our framing reads them, in any pieces, and as h11 and httptools do."""

from __future__ import annotations

import itertools

import h11
import httptools

from kubeloop.http.framing import ChunkedFraming

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def feed_all(pieces: list[bytes]) -> tuple[bytes, ChunkedFraming]:
    body = ChunkedFraming()
    out = b"".join(bytes(part) for piece in pieces for part in body.feed(memoryview(piece)))
    return out, body


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def by_h11(data: bytes) -> tuple[bytes, bool]:
    """What h11 reads of a chunked body, and whether it finds the end; raises for bad framing."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(HEAD + data)
    body = b""
    while True:
        event = connection.next_event()
        match event:
            case h11.Data():
                body += event.data
            case h11.EndOfMessage():
                return body, True
            case h11.Response():
                pass
            case _:
                return body, False


class _HttptoolsSink:
    def __init__(self) -> None:
        self.body = b""
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def by_httptools(data: bytes) -> tuple[bytes, bool]:
    sink = _HttptoolsSink()
    httptools.HttpResponseParser(sink).feed_data(HEAD + data)
    return sink.body, sink.complete
