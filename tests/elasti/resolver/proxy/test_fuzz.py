"""Whatever bytes come, from clients or from pods: no exception, no leak, and nothing ambiguous sent on."""

from __future__ import annotations

import h11
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.elasti.resolver.proxy.fakes import World

from elasti.resolver.proxy.h2frames import HEADERS, PREFACE, SETTINGS, frame

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


@settings(max_examples=600)
@given(streams(REQUESTS), st.lists(streams(RESPONSES), max_size=4))
def test_nothing_escapes_and_pods_read_what_h11_reads(requests, answers):
    world = World()
    remaining = iter(answers)
    for piece in requests:
        world.client.feed(piece)
        for pod in world.pods:
            if not pod.closing:
                for part in next(remaining, []):
                    pod.feed(part)
    world.path.sweeper.tick += 1
    assert world.front.statistics.active >= 0
    for pod in world.pods:
        assert_h11_reads(pod.written)
    world.end()


def assert_h11_reads(wire: bytes) -> None:
    """What a pod was sent is a sequence of requests, the last one perhaps unfinished."""
    connection = h11.Connection(h11.SERVER)
    # h11 wants ASCII in targets, where we take any byte; it changes no framing.
    connection.receive_data(bytes(byte if byte < 0x80 else 0x78 for byte in wire))
    if wire.startswith(PREFACE[:14]):
        return
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return
        if isinstance(event, h11.EndOfMessage):
            if connection.their_state is not h11.DONE:
                return  # it wants to close or to switch
            connection.send(h11.Response(status_code=204, headers=[]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=200), max_size=6), st.booleans())
def test_any_bytes_at_all_are_survived(pieces, h2):
    world = World()
    if h2:
        world.client.feed(PREFACE)
    for piece in pieces:
        world.client.feed(piece)
    world.end()


@settings(max_examples=300)
@given(streams(RESPONSES), st.sampled_from(REQUESTS[:-1]))
def test_the_client_never_sees_a_broken_answer_end_well(pieces, request):
    """What the client was sent is whole messages, unless its connection was broken off."""
    world = World()
    world.client.feed(request)
    for piece in pieces:
        for pod in world.pods:
            pod.feed(piece)
    for pod in world.pods:
        pod.lose()
    if world.client.closing and world.client.written and not world.front.statistics.broken:
        method = request.split(b" ")[0]
        assert client_reads(world.client.written, method)
    world.client.protocol.connection_lost(None)


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
