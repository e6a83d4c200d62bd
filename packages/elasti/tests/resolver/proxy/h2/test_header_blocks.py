"""Header blocks are read and extended so that every decoder stays in step with its encoder."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.h2.header_blocks import HeaderBlockAssembler, encode_block, with_more
from elasti.resolver.proxy.h2.header_fields import StatusReader, literal, status_field

EXTRA = literal(b"x-elasti-cold-start", b"true") + literal(b"server-timing", b"x;dur=1.5")
ADDED = [(b"x-elasti-cold-start", b"true"), (b"server-timing", b"x;dur=1.5")]

statuses = st.sampled_from([b"100", b"103", b"200", b"204", b"301", b"404", b"418", b"503"])
names = st.sampled_from([b"content-type", b"date", b"x-a", b"grpc-status", b"set-cookie"])
fields = st.lists(st.tuples(names, st.binary(max_size=40)), max_size=6)


@st.composite
def responses(draw):
    """Header lists one after the other, some with a status and some (trailers) without."""
    blocks = []
    for _ in range(draw(st.integers(1, 8))):
        first = [(b":status", draw(statuses))] if draw(st.booleans()) else []
        blocks.append(first + draw(fields))
    return blocks


@st.composite
def framed(draw, block: bytes, stream: int = 1):
    """A block in a HEADERS frame, padded or not, and any number of CONTINUATIONs."""
    cuts = sorted(draw(st.lists(st.integers(0, len(block)), max_size=3)))
    pieces = [block[a:b] for a, b in zip([0, *cuts], [*cuts, len(block)], strict=True)]
    flags = draw(st.sampled_from([0, h2.PADDED, h2.PRIORITY, h2.PADDED | h2.PRIORITY]))
    head = pieces[0]
    if flags & h2.PRIORITY:
        head = b"\0\0\0\0\x10" + head
    if flags & h2.PADDED:
        size = draw(st.integers(0, 20))
        head = bytes((size,)) + head + bytes(size)
    kinds = [h2.HEADERS] + [h2.CONTINUATION] * (len(pieces) - 1)
    all_flags = [flags] + [0] * (len(pieces) - 1)
    all_flags[-1] |= h2.END_HEADERS
    return b"".join(
        h2.frame(kind, flags=its, stream=stream, payload=piece)
        for kind, its, piece in zip(kinds, all_flags, [head, *pieces[1:]], strict=True)
    )


def walked(data: bytes) -> list[h2.H2Frame]:
    passed, frames = h2.H2FrameWalker(whole_blocks=True).walk(data)
    assert passed == data
    return frames


def put_together(data: bytes) -> bytes:
    """Return the block that frames carry."""
    blocks, found = HeaderBlockAssembler(), None
    for part in walked(data):
        assert found is None
        found = blocks.add(part, data[part.at + 9 : part.end])
    assert found is not None
    return found.fragment


@given(responses(), st.booleans(), st.lists(st.sampled_from([0, 40, 200, 4096]), max_size=3))
def test_the_status_of_every_block_is_found_as_a_decoder_finds_it(lists, huffman, sizes):
    encoder, decoder, reader = hpack.Encoder(), hpack.Decoder(), StatusReader()
    for number, headers in enumerate(lists):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        block = encoder.encode(headers, huffman=huffman)
        expected = dict(decoder.decode(block, raw=True)).get(b":status")
        assert reader.read(block) == (int(expected) if expected else None)


@given(st.data(), responses())
def test_fields_are_added_however_a_block_is_framed_and_the_tables_stay_in_step(data, lists):
    encoder, decoder, reader = hpack.Encoder(), hpack.Decoder(), StatusReader()
    for headers in lists:
        block = encoder.encode(headers)
        wire = data.draw(framed(block))
        assert put_together(wire) == block
        last = walked(wire)[-1]
        longer = wire[: last.at] + with_more(last, wire[last.at : last.end], EXTRA)
        seen = put_together(longer)
        assert list(decoder.decode(seen, raw=True)) == headers + ADDED
        reader.read(seen)


def test_a_frame_that_would_become_too_large_is_followed_by_another():
    block = hpack.Encoder().encode(
        [(b":status", b"200"), (b"x-large", b"\x01" * 16_350)], huffman=False
    )
    wire = h2.frame(h2.HEADERS, flags=h2.END_HEADERS | h2.END_STREAM, stream=5, payload=block)
    (found,) = walked(wire)
    longer = with_more(found, wire, EXTRA)
    first, second = walked(longer)
    assert (first.kind, first.flags) == (h2.HEADERS, h2.END_STREAM)
    assert (second.kind, second.flags, second.stream) == (h2.CONTINUATION, h2.END_HEADERS, 5)
    assert max(first.length, second.length) <= 16_384
    assert list(hpack.Decoder().decode(put_together(longer), raw=True))[2:] == ADDED


@given(responses(), st.integers(0, 3))
def test_a_reencoded_block_needs_no_table(lists, skipped):
    """Whatever blocks are left out, those that are written are read alike."""
    encoder, reads = hpack.Encoder(), hpack.Decoder()
    for number, headers in enumerate(lists):
        decoded = reads.decode(encoder.encode(headers), raw=True)
        wire = encode_block(7, decoded, ends_stream=True)
        if number >= skipped:
            assert list(hpack.Decoder().decode(put_together(wire), raw=True)) == headers
            assert walked(wire)[0].flags & h2.END_STREAM


def test_a_never_indexed_field_stays_never_indexed():
    sent = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(b"authorization", b"x")])
    wire = encode_block(1, hpack.Decoder().decode(sent, raw=True), ends_stream=False)
    (found,) = hpack.Decoder().decode(put_together(wire), raw=True)
    assert isinstance(found, hpack.NeverIndexedHeaderTuple)


def test_a_large_block_is_written_in_several_frames():
    wire = encode_block(1, [hpack.HeaderTuple(b"x", b"y" * 40_000)], ends_stream=False)
    assert [found.kind for found in walked(wire)] == [1, 9, 9]
    assert list(hpack.Decoder().decode(put_together(wire), raw=True)) == [(b"x", b"y" * 40_000)]


@given(st.binary(max_size=60))
def test_an_invalid_block_is_refused_or_read_and_never_worse(block):
    try:
        status = StatusReader().read(block)
    except ValueError:
        return
    assert status is None or 0 <= status <= 999


@pytest.mark.parametrize("status", [100, 200, 204, 302, 404, 500, 503, 599])
def test_our_own_statuses_are_read(status):
    assert StatusReader().read(status_field(status)) == status
    decoded = dict(hpack.Decoder().decode(status_field(status), raw=True))
    assert decoded == {b":status": b"%d" % status}


def test_what_is_remembered_of_statuses_is_bounded():
    reader = StatusReader()
    for number in range(1000):
        reader.read(b"\x48\x03%d" % (200 + number % 300))
    assert len(reader._known) == 64


@given(st.binary(max_size=300), st.integers(1, 5))
def test_the_walker_passes_everything_on_and_never_half_a_header_block(junk, step):
    wire = (
        h2.frame(h2.DATA, stream=1, payload=junk)
        + h2.frame(h2.HEADERS, flags=h2.END_HEADERS, stream=1, payload=junk[:100])
        + h2.frame(h2.PING, payload=b"12345678")
    )
    walker, passed = h2.H2FrameWalker(whole_blocks=True), b""
    for at in range(0, len(wire), step):
        data, frames = walker.walk(wire[at : at + step])
        passed += data
        for found in frames:
            if found.kind == h2.HEADERS:
                assert found.end <= len(data)
    assert passed == wire
    assert walker.between
