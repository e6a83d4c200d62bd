"""What a hostile h2 client can send before there is a pod, and what it gets for it."""

from __future__ import annotations

import tracemalloc

import hpack
import pytest
from tests.resolver.proxy.fakes import POD, ConnectionRig
from tests.resolver.proxy.h2_peers import request_fields

from elasti.resolver.proxy.h2 import frames as h2

CALM = 11
START = h2.PREFACE + h2.frame(h2.SETTINGS)
SETTINGS_ACK = h2.frame(h2.SETTINGS, flags=h2.ACK)
PING = h2.frame(h2.PING, payload=b"12345678")


@pytest.fixture
def rig():
    """A connection that is held: there is no pod yet."""
    made = ConnectionRig()
    made.upstream.pods.clear()
    yield made
    made.end()


def headers(stream: int, block: bytes, *, end: bool = True) -> bytes:
    flags = h2.END_HEADERS | (h2.END_STREAM if end else 0)
    return h2.frame(h2.HEADERS, flags=flags, stream=stream, payload=block)


def ask(stream: int, encoder: hpack.Encoder, *more: tuple[bytes, bytes], end: bool = True) -> bytes:
    return headers(stream, encoder.encode(request_fields(b"/", *more)), end=end)


def frames_in(wire: bytes) -> list[tuple[h2.H2Frame, bytes]]:
    _, found = h2.H2FrameWalker().walk(wire)
    return [(frame, wire[frame.at + h2.HEADER_SIZE : frame.end]) for frame in found]


def goaway_of(wire: bytes) -> int | None:
    """Return the code of the GOAWAY that was sent, None where there was none."""
    codes = [payload[4:8] for frame, payload in frames_in(wire) if frame.kind == h2.GOAWAY]
    return int.from_bytes(codes[-1], "big") if codes else None


def feed(rig: ConnectionRig, wire: bytes, size: int = 64 * 1024) -> None:
    """Send bytes as long as the connection is read."""
    for at in range(0, len(wire), size):
        if rig.client.ended or not rig.client.reading:
            return
        rig.client.feed(wire[at : at + size])


def bomb(streams: int) -> bytes:
    """Requests of fifteen references each to one field of 3.9 KB, and a cancellation."""
    encoder = hpack.Encoder()
    wire = START + ask(1, encoder, (b"x-a", b"a" * 3900))
    block = encoder.encode(request_fields(b"/")) + bytes((0x80 | 62,)) * 15
    wire += b"".join(headers(3 + 2 * number, block) for number in range(streams))
    return wire + h2.rst_stream(1, 8)


def test_header_blocks_that_expand_end_the_connection(rig):
    wire = bomb(2000)
    tracemalloc.start()
    try:
        feed(rig, wire)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert goaway_of(rig.client.written) == CALM
    assert peak < 2 << 20


def test_header_blocks_that_expand_later_are_not_passed_on(rig):
    """Once a held request was cancelled, all that follows is encoded again."""
    encoder = hpack.Encoder()
    feed(rig, START + ask(1, encoder, (b"x-a", b"a" * 3900)) + ask(3, encoder))
    feed(rig, h2.rst_stream(3, 8))
    rig.upstream.release(POD)
    (pod,) = rig.pods
    block = encoder.encode(request_fields(b"/")) + bytes((0x80 | 62,)) * 15
    before = len(pod.written)
    feed(rig, b"".join(headers(5 + 2 * number, block) for number in range(2000)))
    assert goaway_of(rig.client.written) == CALM
    assert len(pod.written) - before < 2 << 20


def test_a_large_field_in_every_request_is_not_an_attack(rig):
    """A token of 1.5 KB, which compression makes a byte, on as many streams as are allowed."""
    encoder = hpack.Encoder()
    token = (b"authorization", b"Bearer " + b"t" * 1500)
    feed(rig, START + b"".join(ask(1 + 2 * n, encoder, token) for n in range(h2.MAX_STREAMS)))
    assert goaway_of(rig.client.written) is None
    assert len(rig.upstream.waiting) == 1
    assert rig.handler.statistics.active == h2.MAX_STREAMS


def test_bounds_are_announced_and_lifted_when_there_is_a_pod(rig):
    feed(rig, START + ask(1, hpack.Encoder()))
    ours = [
        payload for frame, payload in frames_in(rig.client.written) if frame.kind == h2.SETTINGS
    ]
    assert ours[0] == b"\0\3" + (100).to_bytes(4, "big") + b"\0\6" + (64 * 1024).to_bytes(4, "big")
    rig.upstream.release(POD)
    *_, lifted = [payload for frame, payload in frames_in(rig.client.written) if frame.kind == 4]
    assert lifted == b"\0\3" + b"\xff" * 4 + b"\0\6" + b"\xff" * 4
    # Both acknowledgements are of ours.
    feed(rig, SETTINGS_ACK * 2 + PING)
    (pod,) = rig.pods
    assert pod.written.endswith(PING)
    assert SETTINGS_ACK not in pod.written


@pytest.mark.parametrize("kind", [2, 0x10, 0xFE], ids=["PRIORITY", "PRIORITY_UPDATE", "unknown"])
def test_frames_that_mean_nothing_are_not_kept(rig, kind):
    wire = b"".join(h2.frame(kind, stream=2 * n + 1, payload=b"12345") for n in range(500))
    feed(rig, START + wire + ask(1, hpack.Encoder()))
    rig.upstream.release(POD)
    (pod,) = rig.pods
    assert [frame.kind for frame, _ in frames_in(pod.written[len(h2.PREFACE) :])] == [
        h2.SETTINGS,
        h2.HEADERS,
    ]


def test_windows_are_added_up(rig):
    wire = START + ask(1, hpack.Encoder(), end=False)
    wire += h2.window_update(5) * 100 + h2.window_update(7, stream=1) * 100
    wire += h2.window_update(9, stream=77)
    feed(rig, wire)
    rig.upstream.release(POD)
    (pod,) = rig.pods
    windows = [
        (frame.stream, int.from_bytes(payload, "big"))
        for frame, payload in frames_in(pod.written[len(h2.PREFACE) :])
        if frame.kind == h2.WINDOW_UPDATE
    ]
    assert sorted(windows) == [(0, 500), (1, 700)]


@pytest.mark.parametrize("increment", [0, 1 << 31])
def test_a_window_that_cannot_be_ends_the_connection(rig, increment):
    feed(rig, START + h2.frame(h2.WINDOW_UPDATE, payload=increment.to_bytes(4, "big")))
    assert goaway_of(rig.client.written) == h2.PROTOCOL_ERROR


def test_a_frame_is_charged_for_more_than_its_bytes(rig):
    """Empty requests cost 10 bytes to send and hundreds to keep."""
    encoder = hpack.Encoder()
    wire = START + b"".join(ask(1 + 2 * number, encoder) for number in range(5000))
    tracemalloc.start()
    try:
        feed(rig, wire)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not rig.client.reading
    assert rig.handler.statistics.active < 300
    assert size < 1 << 20
    # What was not parsed follows when there is a pod.
    rig.upstream.release(POD)
    (pod,) = rig.pods
    kinds = [frame.kind for frame, _ in frames_in(pod.written[len(h2.PREFACE) :])]
    assert kinds.count(h2.HEADERS) > 1000


@pytest.mark.parametrize(
    "wire",
    [PING, SETTINGS_ACK, h2.frame(h2.SETTINGS), h2.frame(2, stream=1, payload=b"12345"),
     h2.window_update(1)],
    ids=["ping", "settings ack", "settings", "priority", "window"],
)  # fmt: skip
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "before a request"])
def test_a_flood_of_control_frames_ends_the_connection(rig, wire, is_held):
    feed(rig, START + (ask(1, hpack.Encoder(), end=False) if is_held else b""))
    feed(rig, wire * 900)
    assert goaway_of(rig.client.written) is None
    feed(rig, wire * 200)
    # SETTINGS are kept, and fill what may be kept before they are a flood.
    assert goaway_of(rig.client.written) == CALM or not rig.client.reading


def test_control_frames_are_counted_by_the_second(rig):
    feed(rig, START + ask(1, hpack.Encoder()))
    for _ in range(5):
        rig.path.sweeper.tick += 1
        feed(rig, PING * 900)
    assert goaway_of(rig.client.written) is None


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "joined"])
def test_a_flood_of_resets_ends_the_connection(rig, is_held):
    encoder = hpack.Encoder()
    feed(rig, START + ask(1, encoder))
    if not is_held:
        rig.upstream.release(POD)
    for number in range(1200):
        stream = 3 + 2 * number
        feed(rig, ask(stream, encoder) + h2.rst_stream(stream, 8))
    assert goaway_of(rig.client.written) == CALM


def test_a_flood_of_pings_ends_a_joined_connection(rig):
    feed(rig, START + ask(1, hpack.Encoder()))
    rig.upstream.release(POD)
    feed(rig, PING * 1100)
    assert goaway_of(rig.client.written) == CALM


IDLE_DATA = h2.frame(h2.DATA, stream=1)
PRIORITY = h2.frame(2, stream=1, payload=b"12345")


@pytest.mark.parametrize("wire", [IDLE_DATA, PRIORITY], ids=["empty data", "priority"])
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "joined"])
def test_a_flood_of_frames_that_carry_nothing_ends_the_connection(rig, wire, is_held):
    feed(rig, START + ask(1, hpack.Encoder(), end=False))
    if not is_held:
        rig.upstream.release(POD)
    feed(rig, wire * 900)
    assert goaway_of(rig.client.written) is None
    feed(rig, wire * 200)
    assert goaway_of(rig.client.written) == CALM


def continuations(payload: bytes) -> bytes:
    """A header block that goes on and on."""
    first = h2.frame(h2.HEADERS, stream=3, payload=b"\x82")
    return first + h2.frame(h2.CONTINUATION, stream=3, payload=payload) * 1100


@pytest.mark.parametrize("payload", [b"", b"\x82"], ids=["empty", "of a byte"])
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "joined"])
def test_a_flood_of_continuation_frames_ends_the_connection(rig, payload, is_held):
    feed(rig, START + ask(1, hpack.Encoder(), end=False))
    if not is_held:
        rig.upstream.release(POD)
    feed(rig, continuations(payload))
    assert goaway_of(rig.client.written) == CALM


def test_small_data_frames_do_not_count_as_a_flood(rig):
    """A gRPC stream may send thousands of small messages in a second."""
    feed(rig, START + ask(1, hpack.Encoder(), end=False))
    rig.upstream.release(POD)
    feed(rig, h2.frame(h2.DATA, stream=1, payload=b"x") * 3000)
    assert goaway_of(rig.client.written) is None


def test_a_connection_without_a_request_is_ended_after_thirty_seconds(rig):
    feed(rig, START)
    for tick in range(1, 31):
        rig.path.sweeper.tick = tick
        feed(rig, PING)
        rig.client.protocol.sweep(tick)
        assert goaway_of(rig.client.written) is None
    rig.client.protocol.sweep(31)
    assert goaway_of(rig.client.written) == h2.NO_ERROR


class TestSharedPort:
    """A connection belongs to the authority of its first request."""

    @pytest.fixture
    def shared(self):
        made = ConnectionRig(accepts=lambda request: request.host == b"a")
        made.upstream.pods.clear()
        yield made
        made.end()

    def other(self, stream: int, encoder: hpack.Encoder, *, end: bool = True) -> bytes:
        fields = [*request_fields(b"/private")[:3], (b":authority", b"b")]
        return headers(stream, encoder.encode(fields), end=end)

    def statuses(self, wire: bytes) -> dict[int, bytes]:
        decoder = hpack.Decoder()
        return {
            frame.stream: dict(decoder.decode(payload, raw=True))[b":status"]
            for frame, payload in frames_in(wire)
            if frame.kind == h2.HEADERS
        }

    @pytest.mark.parametrize("is_held", [True, False], ids=["held", "joined"])
    @pytest.mark.parametrize("size", [1, 64 * 1024])
    def test_streams_of_another_authority_are_misdirected(self, shared, is_held, size):
        encoder = hpack.Encoder()
        first, rest = START + ask(1, encoder), self.other(3, encoder, end=False)
        rest += h2.frame(h2.DATA, stream=3, payload=b"secret") + self.other(5, encoder)
        rest += ask(7, encoder, end=False) + h2.frame(h2.DATA, flags=1, stream=7, payload=b"mine")
        rest += h2.window_update(5, stream=3) + h2.rst_stream(3, 8)
        feed(shared, first)
        if is_held:
            feed(shared, rest, size)
        shared.upstream.release(POD)
        if not is_held:
            feed(shared, rest, size)
        (pod,) = shared.pods
        decoder, got = hpack.Decoder(), {}
        for frame, payload in frames_in(pod.written[len(h2.PREFACE) :]):
            assert frame.stream in (0, 1, 7)
            if frame.kind == h2.HEADERS:
                got[frame.stream] = dict(decoder.decode(payload, raw=True))[b":authority"]
        assert got == {1: b"a", 7: b"a"}
        assert b"secret" not in pod.written
        assert b"mine" in pod.written
        assert self.statuses(shared.client.written) == {3: b"421", 5: b"421"}
        # What the client sent there counts in its window, and the pod never saw it.
        assert h2.window_update(6) in shared.client.written

    def test_our_frames_cut_none_of_the_pods(self, shared):
        encoder = hpack.Encoder()
        feed(shared, START + ask(1, encoder))
        shared.upstream.release(POD)
        (pod,) = shared.pods
        answer = h2.frame(h2.SETTINGS) + h2.response_frames(1, 200, b"x" * 100, b"text/plain")
        pod.feed(answer[:-50])
        feed(shared, self.other(3, encoder))
        pod.feed(answer[-50:])
        assert answer.removeprefix(h2.frame(h2.SETTINGS))[-109:] in shared.client.written
        assert self.statuses(shared.client.written) == {1: b"200", 3: b"421"}

    def test_header_blocks_that_expand_end_the_connection(self, shared):
        tracemalloc.start()
        try:
            feed(shared, bomb(2000))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert goaway_of(shared.client.written) == CALM
        assert peak < 8 << 20

    def test_a_client_that_does_not_listen_is_sent_away(self, shared):
        encoder = hpack.Encoder()
        feed(shared, START + ask(1, encoder))
        feed(shared, b"".join(self.other(3 + 2 * n, encoder) for n in range(101)))
        assert goaway_of(shared.client.written) == CALM

    @pytest.mark.parametrize("wire", [continuations(b""), h2.frame(h2.DATA, stream=3) * 1100])
    def test_a_flood_of_frames_that_carry_nothing_ends_the_connection(self, shared, wire):
        encoder = hpack.Encoder()
        feed(shared, START + ask(1, encoder) + self.other(3, encoder) + wire)
        assert goaway_of(shared.client.written) == CALM
