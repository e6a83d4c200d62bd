from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.http.framing import (
    ChunkedFraming,
    FramingError,
    HttpResponseHead,
    ResponseHeadReader,
    SizedFraming,
    UntilCloseFraming,
)


def read(*pieces: bytes) -> tuple[HttpResponseHead, bytes] | None:
    reader = ResponseHeadReader()
    found = None
    for piece in pieces:
        assert found is None
        found = reader.feed(memoryview(piece))
    return found


@given(places=st.lists(st.integers(0, 200), max_size=10))
def test_a_head_may_come_in_any_pieces(places: list[int]) -> None:
    wire = b"HTTP/1.1 200 OK\r\nContent-Type: application/json \r\nX-Empty:\r\n\r\n"
    edges = [0, *sorted(place % len(wire) for place in places), len(wire)]

    found = read(*(wire[a:b] for a, b in itertools.pairwise(edges)))

    fields = (("content-type", "application/json"), ("x-empty", ""))
    assert found == (HttpResponseHead(200, "OK", fields), b"")


def test_interim_responses_are_passed_over() -> None:
    found = read(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r",
        b"\nHTTP/1.1 200\r\nA: b\r\n\r\nbody",
    )

    assert found == (HttpResponseHead(200, "", (("a", "b"),)), b"body")


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: " + b"b" * 70_000,
    ],
)
def test_what_is_not_http_is_refused(wire: bytes) -> None:
    with pytest.raises(FramingError):
        read(wire)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"transfer-encoding": "chunked"}, ChunkedFraming),
        ({"transfer-encoding": "Chunked"}, ChunkedFraming),
        ({"content-length": "5"}, SizedFraming),
        ({"content-length": "5, 5"}, SizedFraming),
        ({}, UntilCloseFraming),
    ],
)
def test_the_fields_choose_the_framing(fields: dict[str, str], kind: type) -> None:
    assert isinstance(HttpResponseHead(200, "", tuple(fields.items())).body(), kind)


@pytest.mark.parametrize(
    "fields",
    [
        {"transfer-encoding": "chunked", "content-length": "5"},
        {"transfer-encoding": "gzip, chunked"},
        {"content-length": "5, 6"},
        {"content-length": "-5"},
        {"content-length": "5x"},
        {"content-length": ""},
    ],
)
def test_contradictory_framing_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(FramingError):
        HttpResponseHead(200, "", tuple(fields.items())).body()


def test_a_sized_body_ends_at_its_size() -> None:
    body = SizedFraming(5)

    assert body.feed(memoryview(b"abc")) == [b"abc"]
    assert not body.finished
    assert body.feed(memoryview(b"defg")) == [b"de"]
    assert body.finished
    assert body.may_end


@pytest.mark.parametrize("status", [204, 304])
def test_some_answers_have_no_body(status: int) -> None:
    assert HttpResponseHead(status, "", (("content-length", "7"),)).body().finished
