"""h2 by chance: whatever clients and pods send, and whenever pods come, both ends stay in step."""

from __future__ import annotations

import hpack
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.resolver.proxy.fakes import POD, ConnectionRig
from tests.resolver.proxy.h2_peers import request_fields
from tests.resolver.proxy.memory_upstream import MemoryUpstream

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.h2.header_blocks import HeaderBlockAssembler

names = st.sampled_from([b"x-a", b"x-b", b"cookie", b"user-agent"])
fields = st.lists(st.tuples(names, st.binary(max_size=30)), max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), fields),
        st.tuples(st.just("data"), st.integers(0, 300)),
        st.tuples(st.just("reset"), st.integers(0, 5)),
        st.tuples(st.just("ping"), st.none()),
        st.tuples(st.just("window"), st.none()),
        st.tuples(st.just("release"), st.none()),
    ),
    min_size=1,
    max_size=25,
)


class Player:
    """A client that plays steps, and knows what a pod must have seen of them at the end."""

    def __init__(self) -> None:
        self.rig = ConnectionRig()
        self.upstream = self.rig.handler.upstream
        assert isinstance(self.upstream, MemoryUpstream)
        self.upstream.pods.clear()
        self.encoder = hpack.Encoder()
        self.expected: dict[int, list[tuple[bytes, bytes]]] = {}
        self.stream = -1
        self.released = False
        self.wire = h2.PREFACE + h2.frame(h2.SETTINGS)

    def play(self, what: str, value) -> None:
        if what == "ask":
            self.stream += 2
            headers = request_fields(b"/%d" % self.stream, *value)
            self.expected[self.stream] = headers
            block = self.encoder.encode(headers)
            flags = h2.END_HEADERS
            self.wire += h2.frame(h2.HEADERS, flags=flags, stream=self.stream, payload=block)
        elif what == "data" and self.stream in self.expected:
            self.wire += h2.frame(h2.DATA, stream=self.stream, payload=b"d" * value)
        elif what == "reset" and self.expected:
            stream = list(self.expected)[value % len(self.expected)]
            self.wire += h2.rst_stream(stream, 8)
            if not self.released:
                del self.expected[stream]
        elif what == "ping":
            self.wire += h2.frame(h2.PING, payload=b"12345678")
        elif what == "window":
            self.wire += h2.window_update(100)
        elif what == "release":
            self.send(len(self.wire))
            self.release()

    def send(self, size: int) -> None:
        while self.wire:
            self.rig.client.feed(self.wire[:size])
            self.wire = self.wire[size:]

    def release(self) -> None:
        self.released = True
        assert isinstance(self.upstream, MemoryUpstream)
        self.upstream.release(POD)


def asked_of(pod) -> dict[int, list[tuple[bytes, bytes]]]:
    """Return what a pod reads: every request, decoded with one table from the start."""
    assert pod.written.startswith(h2.PREFACE)
    data, decoder, blocks, found = (
        pod.written[len(h2.PREFACE) :],
        hpack.Decoder(),
        HeaderBlockAssembler(),
        {},
    )
    _, frames = h2.H2FrameWalker(whole_blocks=True).walk(data)
    last = 0
    for part in frames:
        if part.kind not in h2.BLOCKS:
            assert not part.stream or part.stream in found, "a frame of a stream that is not open"
            continue
        block = blocks.add(part, data[part.at + 9 : part.end])
        if block is not None:
            decoded = [(bytes(n), bytes(v)) for n, v in decoder.decode(block.fragment, raw=True)]
            assert block.stream > last
            last = block.stream
            found[block.stream] = decoded
    return found


@settings(max_examples=2 * settings().max_examples)
@given(steps, st.integers(1, 400))
def test_a_pod_sees_every_request_that_was_not_taken_back_and_can_read_it(played, size):
    player = Player()
    for what, value in played:
        player.play(what, value)
        if not player.released:
            # In pieces while it is held: a request that is half there may be taken back whole.
            player.send(size)
        else:
            player.send(len(player.wire) or 1)
    if not player.released:
        player.release()
    pods = player.rig.pods
    assert len(pods) == (1 if player.expected else len(pods))
    if pods:
        assert asked_of(pods[0]) == player.expected
    player.rig.end()


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10), st.integers(0, 255), st.integers(0, 7), st.binary(max_size=60)
        ),
        max_size=20,
    ),
    st.integers(1, 100),
    st.booleans(),
)
def test_any_frames_from_either_side_are_survived(frames, size, from_pod):
    player = Player()
    player.play("ask", [(b"x-a", b"1")])
    player.play("ask", [])
    player.play("release", None)
    wire = b"".join(
        h2.frame(kind, flags=flags, stream=stream, payload=payload)
        for kind, flags, stream, payload in frames
    )
    side = player.rig.pods[0] if from_pod else player.rig.client
    for at in range(0, len(wire), size):
        side.feed(wire[at : at + size])
    player.rig.end()
