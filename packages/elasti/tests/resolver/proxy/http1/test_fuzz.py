"""Whatever bytes come, from clients or from pods: no exception, no leak, and nothing ambiguous sent on."""

from __future__ import annotations

import h11
import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.resolver.proxy.fakes import ConnectionRig
from tests.resolver.proxy.request_readers import (
    assert_both_read_the_same,
    read_by_h11,
    read_by_httptools,
)
from tests.resolver.proxy.smuggling import SMUGGLING

from elasti.resolver.proxy.h2.frames import HEADERS, PREFACE, SETTINGS, frame

REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    b"GET / HTTP/1.0\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
    PREFACE + frame(SETTINGS) + frame(HEADERS, flags=5, stream=1, payload=b"\x82\x86\x84"),
]
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nbytes",
    b"HTTP/1.0 200 OK\r\n\r\nuntil the end",
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\nConnection: close\r\n\r\n",
]
SPICE = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b":",
    b"\x00",
    b"0",
    b"5",
    b"\xff",
    b"Content-Length: 3\r\n",
]
SPICE += [b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n", b"GET / HTTP/1.1\r\nHost: s\r\n\r\n"]


@st.composite
def streams(draw, corpus):
    """Messages one after the other, spoiled here and there, in pieces."""
    data = b"".join(draw(st.lists(st.sampled_from(corpus), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        gone = draw(st.integers(0, 3))
        data = data[:at] + draw(st.sampled_from([b"", *SPICE])) + data[at + gone :]
    cuts = sorted({draw(st.integers(0, len(data))) for _ in range(draw(st.integers(0, 4)))})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


@settings(max_examples=2 * settings().max_examples)
@given(streams(REQUESTS), st.lists(streams(RESPONSES), max_size=4))
def test_nothing_escapes_and_pods_read_what_h11_reads(requests, answers):
    rig = ConnectionRig()
    remaining = iter(answers)
    for piece in requests:
        rig.client.feed(piece)
        for pod in rig.pods:
            if not pod.closing:
                for part in next(remaining, []):
                    pod.feed(part)
    rig.path.sweeper.tick += 1
    assert rig.handler.statistics.active >= 0
    for pod in rig.pods:
        assert_both_read_the_same(pod.written)
    rig.end()


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK_TRICKS = [
    b"0\r\n\r\n"[:3] + SMUGGLED,
    b"5\nhello\r\n0\r\n\r\n",
    b"5\rhello\r\n0\r\n\r\n",
    b"5;\nx\r\nhello\r\n0\r\n\r\n",
    b'5;a="\r\n"\r\nhello\r\n0\r\n\r\n',
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhelloXX0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"-1\r\nhello\r\n0\r\n\r\n",
    b"5_0\r\nhello\r\n0\r\n\r\n",
    b" 5\r\nhello\r\n0\r\n\r\n",
    b"\r\n5\r\nhello\r\n0\r\n\r\n",
    b"FFFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
    b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhello\r\n0\r\nContent-Length: 50\r\nbad\r\n\r\n",
    b"5\r\nhello\r\n0\r\n X: folded\r\n\r\n",
    b"5\r\nhello\r\n0\r\nX: y\n\n",
    b"5\r\nhello\r\n00\n\r\n",
    b"5" + b" " * 600 + b"\r\nhello\r\n0\r\n\r\n",
]


def pods_were_asked_for(rig: ConnectionRig) -> list[bytes]:
    """Return the paths that either reader finds in what pods were sent."""
    found = []
    for pod in rig.pods:
        for read in (read_by_h11, read_by_httptools):
            try:
                requests = read(pod.written) or []
            except (h11.RemoteProtocolError, httptools.HttpParserError):
                continue
            found += [target for _, target, _ in requests]
    return found


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("fields", SMUGGLING)
def test_a_smuggled_request_never_reaches_a_pod(fields, together):
    rig = ConnectionRig()
    head = b"POST /first HTTP/1.1\r\nHost: a\r\n" + fields.encode("latin-1") + b"\r\n"
    body = b"0\r\n\r\n" + SMUGGLED
    for piece in [head + body] if together else [head, body]:
        rig.client.feed(piece)
    assert pods_were_asked_for(rig) == []
    assert not any(b"smuggled" in pod.written for pod in rig.pods)
    rig.end()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("body", CHUNK_TRICKS)
def test_a_request_smuggled_behind_a_strange_chunk_never_reaches_a_pod(body, together):
    rig = ConnectionRig()
    for piece in [CHUNKED + body + SMUGGLED] if together else [CHUNKED, body, SMUGGLED]:
        rig.client.feed(piece)
    assert b"/smuggled" not in pods_were_asked_for(rig)
    rig.end()


@given(st.lists(st.binary(max_size=200), max_size=6), st.booleans())
def test_any_bytes_at_all_are_survived(pieces, h2):
    rig = ConnectionRig()
    if h2:
        rig.client.feed(PREFACE)
    for piece in pieces:
        rig.client.feed(piece)
    rig.end()


@given(streams(RESPONSES), st.sampled_from(REQUESTS[:-1]))
def test_the_client_never_sees_a_broken_answer_end_well(pieces, request):
    """What the client was sent is whole messages, unless its connection was broken off."""
    rig = ConnectionRig()
    rig.client.feed(request)
    for piece in pieces:
        for pod in rig.pods:
            pod.feed(piece)
    for pod in rig.pods:
        pod.lose()
    if rig.client.closing and rig.client.written and not rig.handler.statistics.broken:
        method = request.split(b" ")[0]
        assert client_reads(rig.client.written, method)
    rig.client.protocol.connection_lost(None)


def client_reads(wire: bytes, method: bytes) -> bool:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    if b"HTTP/1.1 101 " in wire:
        return True
    connection.receive_data(wire)
    connection.receive_data(b"")
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            # Codings that h11 does not know pass, and end with the connection.
            return "Transfer-Encoding" in str(error)
        if isinstance(event, h11.EndOfMessage):
            return True
        assert event is not h11.NEED_DATA
