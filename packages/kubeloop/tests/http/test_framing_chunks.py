from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.http.chunk_readers import by_h11, by_httptools, cut, feed_all

from kubeloop.http.framing import FramingError

extensions = st.sampled_from([b"", b";a", b";a=b", b';a="b;c"'])
trailers = st.lists(
    st.sampled_from([b"X-A: 1\r\n", b"Grpc-Status:0\r\n", b"X-Empty:\r\n"]), max_size=2
)
payloads = st.lists(
    st.binary(min_size=1, max_size=40) | st.sampled_from([b"\r\n", b"\n", b"0\r\n\r\n"])
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A valid chunked body, and what it holds."""
    chunks = draw(payloads)
    wire = b""
    for chunk in chunks:
        size = b"%x" % len(chunk)
        size = draw(st.sampled_from([size, size.upper(), b"000" + size]))
        wire += size + draw(extensions) + b"\r\n" + chunk + b"\r\n"
    wire += b"0" + draw(extensions) + b"\r\n" + b"".join(draw(trailers)) + b"\r\n"
    return wire, b"".join(chunks)


@given(stream=streams(), places=st.lists(st.integers(0, 10_000), max_size=30))
def test_any_split_of_a_valid_stream_gives_the_same_body(
    stream: tuple[bytes, bytes], places: list[int]
) -> None:
    wire, expected = stream

    got, body = feed_all(cut(wire, places))

    assert got == expected
    assert body.finished
    assert by_h11(wire) == (expected, True)
    assert by_httptools(wire) == (expected, True)


@given(stream=streams())
def test_byte_by_byte_is_no_different(stream: tuple[bytes, bytes]) -> None:
    wire, expected = stream

    got, body = feed_all([bytes([byte]) for byte in wire])

    assert (got, body.finished) == (expected, True)


@given(stream=streams(), data=st.data())
def test_beginning_gives_beginning_of_body_and_is_not_finished(
    stream: tuple[bytes, bytes], data: st.DataObject
) -> None:
    wire, expected = stream
    length = data.draw(st.integers(0, len(wire) - 1))

    got, body = feed_all([wire[:length]])

    assert expected.startswith(got)
    assert not body.finished
    assert not body.may_end


@given(
    stream=streams(),
    place=st.integers(0, 10_000),
    junk=st.binary(min_size=1, max_size=4)
    | st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b"-1", b"g"]),
    places=st.lists(st.integers(0, 10_000), max_size=10),
)
def test_damaged_framing_is_error_or_what_oracle_reads_too(
    stream: tuple[bytes, bytes], place: int, junk: bytes, places: list[int]
) -> None:
    wire, _ = stream
    place %= len(wire)
    damaged = wire[:place] + junk + wire[place:]

    try:
        got, body = feed_all(cut(damaged, places))
    except FramingError:
        return

    # Accepted: then h11 must read the same. It forgives what we do not, never the other way round.
    theirs, complete = by_h11(damaged)
    assert (got, body.finished) == (theirs, complete)


@pytest.mark.parametrize(
    "wire",
    [
        b"5\nhello\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"-5\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"\r\n5\r\nhello\r\n",
        b";a\r\n",
        b"5 \r\nhello\r\n",
        b"5 ;a\r\nhello\r\n",
        b"5;a\x00b\r\nhello\r\n",
        b"11111111111111111\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\nX: a\nY: b\r\n\r\n",
        b"g\r\n",
    ],
)
def test_malformed_framing_is_refused(wire: bytes) -> None:
    with pytest.raises(FramingError):
        feed_all([wire])
    with pytest.raises(FramingError):
        feed_all([bytes([byte]) for byte in wire])


def test_an_endless_extension_is_refused() -> None:
    with pytest.raises(FramingError):
        feed_all([b"5;" + b"a" * 20_000])


def test_what_follows_the_end_is_ignored() -> None:
    got, body = feed_all([b"1\r\nx\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n"])

    assert (got, body.finished) == (b"x", True)
