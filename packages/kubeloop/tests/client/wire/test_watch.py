from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.wire.watch import LineSplitter
from kubeloop.http.framing import FramingError


@pytest.mark.spec("R37", "X13")
@given(
    data=st.binary(max_size=200).map(lambda b: b.replace(b"a", b"\n")),
    places=st.lists(st.integers(0, 200), max_size=20),
)
def test_any_split_gives_the_same_whole_lines(data: bytes, places: list[int]) -> None:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    splitter = LineSplitter()

    lines = [line for a, b in itertools.pairwise(edges) for line in splitter.feed(data[a:b])]

    assert lines == [line for line in data.split(b"\n")[:-1] if line]


def test_a_line_of_megabytes_comes_whole() -> None:
    splitter = LineSplitter()
    piece = b"x" * 100_000

    assert [splitter.feed(piece) for _ in range(15)] == [[]] * 15
    assert splitter.feed(b"end\nnext") == [piece * 15 + b"end"]
    assert splitter.feed(b"\n") == [b"next"]


def test_a_line_above_the_limit_is_refused() -> None:
    splitter = LineSplitter(limit=10)
    splitter.feed(b"12345678")

    with pytest.raises(FramingError, match="more than 10 bytes"):
        splitter.feed(b"9abc")


def test_the_limit_counts_each_line_again() -> None:
    splitter = LineSplitter(limit=10)

    assert splitter.feed(b"123456789\n123456789") == [b"123456789"]
    assert splitter.feed(b"\n123456789") == [b"123456789"]
