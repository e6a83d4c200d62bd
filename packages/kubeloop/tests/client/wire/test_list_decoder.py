from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.wire.list_decoder import PageDecoder, last_top_comma
from kubeloop.objects.codec import Codec, codec_for
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.list_watch import DecodeError
from kubeloop.objects.meta import SlimMeta


class SlimPod(msgspec.Struct, gc=False):
    metadata: SlimMeta


class Watched(Codec[Any]):
    """The dictionary codec, noting how many items each call decoded."""

    def __init__(self) -> None:
        self._inner = codec_for(dict)
        super().__init__(self._inner.access)
        self.batches: list[int] = []
        self.largest = 0

    def decode(self, data):
        return self._inner.decode(data)

    def encode(self, obj):
        return self._inner.encode(obj)

    def decode_items(self, data, of=None):
        self.largest = max(self.largest, len(data))
        items = self._inner.decode_items(data)
        self.batches.append(len(items))
        return items

    def decode_page(self, body):
        self.largest = max(self.largest, len(body))
        return self._inner.decode_page(body)

    def _change(self, line):
        raise NotImplementedError


def feed(body: bytes, places: list[int], codec: Codec[Any], *, batch: int = 1) -> Any:
    decoder = PageDecoder(codec, batch=batch)
    edges = [0, *sorted(place % (len(body) + 1) for place in places), len(body)]
    for start, end in itertools.pairwise(edges):
        decoder.feed(body[start:end])
    return decoder.finish()


nasty = st.sampled_from(
    [
        "}",
        "{",
        "]",
        "[",
        "},{",
        '"',
        "\\",
        '\\"',
        '"items":[',
        '},{"metadata":{',
        ",",
        "é",
        "\n",
        "{}",
    ]
)
leaves = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 1) | nasty | st.text(max_size=3)
)
keys = st.sampled_from(["metadata", "items", "name", "kind", "a"]) | nasty
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=10,
)
items = st.lists(st.dictionaries(keys, values, max_size=4), max_size=8)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")])
list_meta = st.sampled_from([{"resourceVersion": "5"}, {"resourceVersion": "5", "continue": "},{"}])


@given(
    contents=items,
    metadata=list_meta,
    order=st.permutations(["kind", "apiVersion", "metadata", "items", "extra"]),
    extra=values,
    style=separators,
    ascii_only=st.booleans(),
    places=st.lists(st.integers(0, 5000), max_size=30),
    batch=st.integers(1, 200),
)
def test_any_list_in_any_pieces_reads_as_json_does(
    contents: list[dict[str, Any]],
    metadata: dict[str, Any],
    order: list[str],
    extra: object,
    style: tuple[str, str],
    ascii_only: bool,
    places: list[int],
    batch: int,
) -> None:
    whole = {
        "kind": "FooList",
        "apiVersion": "v1",
        "metadata": metadata,
        "items": contents,
        "extra": extra,
    }
    text = json.dumps({key: whole[key] for key in order}, separators=style, ensure_ascii=ascii_only)

    page = feed(text.encode(), places, Watched(), batch=batch)

    expected = json.loads(text)["items"]
    # The last items are decoded with their list and take its type; those before may not.
    bare = [
        {k: v for k, v in item.items() if k not in {"kind", "apiVersion"}} for item in page.items
    ]
    assert bare == [
        {k: v for k, v in item.items() if k not in {"kind", "apiVersion"}} for item in expected
    ]
    assert page.resource_version == "5"
    assert page.continue_token == metadata.get("continue", "")


def pod(number: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"p{number}", "annotations": {"a": '},{"metadata":{'}},
        "spec": {"claims": [{"metadata": {"name": "x"}}, {"metadata": {"name": "y"}}], "é": "]}"},
    }


def pod_list(count: int, **changes: object) -> bytes:
    body = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "5"},
        "items": [pod(number) for number in range(count)],
    }
    return json.dumps(body | changes, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.spec("R15")
def test_a_big_list_is_decoded_in_batches_and_never_whole() -> None:
    codec, body = Watched(), pod_list(5000)

    page = feed(body, list(range(0, len(body), 1000)), codec, batch=10_000)

    assert [item["metadata"]["name"] for item in page.items] == [f"p{n}" for n in range(5000)]
    assert len(codec.batches) > 50
    assert codec.largest < 15_000


@pytest.mark.parametrize("kind", [dict, LazyObject, SlimPod])
@pytest.mark.parametrize("step", [1, 7, 1000, 100_000])
def test_every_representation_comes_whole_from_pieces_of_any_size(kind: type, step: int) -> None:
    codec: Codec[Any] = codec_for(kind)
    body = pod_list(60)

    page = feed(body, list(range(0, len(body), step)), codec, batch=2000)

    assert page == codec.decode_page(body)


def test_unlike_beginnings_of_items_are_cut_by_the_slow_scanner() -> None:
    contents = [{"a" * (n % 5 + 1): {"x": ["},{", n]}} for n in range(2000)]
    codec, body = Watched(), pod_list(0, items=contents)

    page = feed(body, list(range(0, len(body), 500)), codec, batch=5000)

    assert [next(iter(item)) for item in page.items] == [next(iter(item)) for item in contents]
    assert codec.largest < 10_000


def test_an_item_larger_than_a_batch_is_read_once() -> None:
    contents = [{"metadata": {"name": "big"}, "data": "x" * 100_000}, {"metadata": {"name": "b"}}]
    body = pod_list(0, items=contents)

    page = feed(body, list(range(0, len(body), 100)), codec_for(SlimPod), batch=1000)

    assert [item.metadata.name for item in page.items] == ["big", "b"]


@pytest.mark.spec("R13")
@pytest.mark.parametrize("size", [0, 5000])
def test_a_table_is_refused_however_long(size: int) -> None:
    rows = [{"cells": ["a"], "object": pod(n)} for n in range(size)]
    body = json.dumps({"kind": "Table", "metadata": {}, "rows": rows}).encode()

    with pytest.raises(DecodeError, match="Table"):
        feed(body, list(range(0, len(body), 1000)), Watched(), batch=1000)


@pytest.mark.parametrize("end", [1, 2, 3, 50, 5000])
def test_a_list_that_breaks_off_is_an_error(end: int) -> None:
    body = pod_list(500)[:-end]

    with pytest.raises(DecodeError):
        feed(body, list(range(0, len(body), 1000)), codec_for(dict), batch=5000)


@pytest.mark.parametrize("damage", [b",}", b"}", b"]", b'"', b"\xff"])
def test_damage_in_middle_is_error_and_never_shorter_list(damage: bytes) -> None:
    body = pod_list(500)
    middle = body.index(b'{"metadata":{"name":"p250"')
    damaged = body[:middle] + damage + body[middle:]

    with pytest.raises(DecodeError):
        feed(damaged, list(range(0, len(damaged), 1000)), codec_for(dict), batch=5000)


def test_item_of_wrong_shape_is_error_that_names_field() -> None:
    contents = [pod(n) for n in range(100)]
    contents[40]["metadata"]["name"] = 5
    body = pod_list(0, items=contents)

    with pytest.raises(DecodeError, match=r"metadata\.name"):
        feed(body, list(range(0, len(body), 500)), codec_for(SlimPod), batch=1000)


@given(contents=st.lists(values, min_size=1, max_size=6), style=separators, data=st.data())
def test_the_scanner_finds_the_last_comma_between_elements(
    contents: list[object], style: tuple[str, str], data: st.DataObject
) -> None:
    parts = [json.dumps(element, separators=style).encode() for element in contents]
    separator = style[0].encode()
    text = b"[" + separator.join(parts) + b"]"
    length = data.draw(st.integers(1, len(text)))
    ends = [1 + len(separator.join(parts[:count])) for count in range(1, len(parts))]
    commas = [end + separator.index(b",") for end in ends]

    place = last_top_comma(text[:length])

    assert place == max((comma for comma in commas if comma < length), default=0)
