from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.resolver.proxy.http1.bodies import (
    BodyFramingError,
    ChunkedBodyReader,
    LengthBodyReader,
    body_of,
)
from elasti.resolver.proxy.http1.heads import Framing


def drive(body, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """Feed a body as a connection does: what is not taken is shown again with more behind it."""
    taken, pending = b"", b""
    for piece in pieces:
        pending += piece
        if not body.done:
            end = body.take(pending)
            taken, pending = taken + pending[:end], pending[end:]
    return taken, pending


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *points], [*points, len(data)], strict=True)]


chunk_lists = st.lists(st.binary(min_size=1, max_size=40), max_size=5)
cuts = st.lists(st.integers(0, 500), max_size=12)


@given(chunk_lists, st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: \r\nB:c\r\n"]), cuts)
def test_a_chunked_body_ends_at_the_same_byte_however_it_is_cut(chunks, trailers, at):
    body = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    body += b"0\r\n" + trailers + b"\r\n"
    following = b"GET / HTTP/1.1\r\n\r\n"
    walker = ChunkedBodyReader()
    taken, rest = drive(walker, split(body + following, at))
    assert walker.done
    assert taken == body
    assert rest == following


@given(st.integers(1, 100), st.binary(max_size=150), cuts)
def test_a_body_of_known_length_takes_exactly_that(length, data, at):
    body = LengthBodyReader(length)
    taken, rest = drive(body, split(data, at))
    assert taken + rest == data
    assert len(taken) == min(length, len(data))
    assert body.done == (len(data) >= length)


@pytest.mark.parametrize(
    "wire",
    [
        b"-1\r\nx\r\n0\r\n\r\n",
        b"+1\r\nx\r\n0\r\n\r\n",
        b"0x1\r\nx\r\n0\r\n\r\n",
        b" 1\r\nx\r\n0\r\n\r\n",
        b"1\nx\n0\n\n",
        b"1\r\nxy\r\n0\r\n\r\n",
        b"1\r\nx\n0\r\n\r\n",
        b"1;a\nb\r\nx\r\n0\r\n\r\n",
        b"fffffffffffffffff\r\nx",
        b"\r\n",
        b"0\r\n bad: 1\r\n\r\n",
        b"0\r\nbad : 1\r\n\r\n",
        b"0\r\nfold: 1\r\n more\r\n\r\n",
        b"0\r\nA: 1\nB: 2\r\n\r\n",
        b"1;" + b"e" * 600 + b"\r\nx\r\n0\r\n\r\n",
        b"0\r\nA: " + b"e" * 20_000,
        b"1;a=b=c\r\nx\r\n0\r\n\r\n",
        b'1;a="b\r\nx\r\n0\r\n\r\n',
        b"1;\r\nx\r\n0\r\n\r\n",
        b"0\r\nContent-Length: 1\r\n\r\n",
        b"0\r\nContent_Length: 1\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"5\t\r\nhello\r\n0\r\n\r\n",
        b"5;a=b \r\nhello\r\n0\r\n\r\n",
        b"0 \r\n\r\n",
        b"0\r\nX: y\r\ntransfer-Encoding:chunked\r\n\r\n",
    ],
)
def test_a_chunk_that_two_parsers_could_read_differently_is_refused(wire):
    with pytest.raises(BodyFramingError):
        drive(ChunkedBodyReader(), [wire])


def test_a_pod_may_pad_its_chunk_sizes():
    """Old servers do; the request was executed, and the size can be read in one way only."""
    body = body_of(Framing.CHUNKED, 0, is_response=True)
    assert body is not None
    wire = b"5  \r\nhello\r\n0 \r\n\r\n"
    assert drive(body, [wire])[0] == wire


@given(
    st.lists(
        st.sampled_from(
            [b"0", b"5", b"a", b"\r\n", b"\n", b"\r", b";x", b" ", b"hello", b"X:1", b"-"]
        ),
        max_size=14,
    ),
    cuts,
)
def test_whatever_is_accepted_h11_reads_the_same_way(parts, at):
    wire = b"".join(parts)
    body = ChunkedBodyReader()
    try:
        taken, _ = drive(body, split(wire, at))
    except BodyFramingError:
        return
    if body.done:
        assert h11_chunked_length(wire) == len(taken)


def h11_chunked_length(wire: bytes) -> int:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + wire
    )
    while not isinstance(connection.next_event(), h11.EndOfMessage):
        pass
    return len(wire) - len(connection.trailing_data[0])
