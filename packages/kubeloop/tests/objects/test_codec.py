from __future__ import annotations

import json
import time
from typing import Annotated, Any

import msgspec
import pytest

from kubeloop.objects.codec import Codec, codec_for, without_depths
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.list_watch import DecodeError, ItemType, WatchEvent
from kubeloop.objects.meta import DICT_ACCESS, STRUCT_ACCESS, PartialObjectMetadata, SlimMeta


class SlimPod(msgspec.Struct, gc=False):
    metadata: SlimMeta


class StrictPod(msgspec.Struct):
    """Every field is required, so that nothing but a pod decodes as one."""

    metadata: SlimMeta
    spec: dict[str, Any]


POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "web", "resourceVersion": "7", "managedFields": [{"manager": "m"}]},
    "spec": {"nodeName": "n"},
}
ITEM = {"metadata": POD["metadata"], "spec": POD["spec"]}
KINDS = [dict, LazyObject, PartialObjectMetadata, SlimPod, StrictPod]


def encode(obj: object) -> bytes:
    return json.dumps(obj, separators=(",", ":")).encode()


def line(kind: str, obj: object) -> bytes:
    return encode({"type": kind, "object": obj})


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def codec(request: pytest.FixtureRequest) -> Codec[Any]:
    return codec_for(request.param)


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_changes_carry_the_object_in_the_representation_asked_for(
    codec: Codec[Any], kind: str
) -> None:
    event = codec.decode_event(line(kind, POD))

    assert event.type == kind
    assert event == WatchEvent(kind, codec.decode(encode(POD)))
    assert codec.access.name(event.object) == "web"
    assert codec.access.version(event.object) == "7"


@pytest.mark.parametrize(
    "data",
    [
        b'{ "type" : "ADDED" , "object" : %b }' % encode(POD),
        b'{"object":%b,"type":"ADDED"}' % encode(POD),
        b'{"type":"ADDED","object":%b,"more":{"a":1}}' % encode(POD),
        b'{"more":1,"type":"ADDED","object":%b}' % encode(POD),
        b'{"type":"ADDED","object":%b}\r' % encode(POD),
        b'{"type":"\\u0041DDED","object":%b}' % encode(POD),
    ],
)
def test_other_ways_to_write_the_same_event_are_understood(codec: Codec[Any], data: bytes) -> None:
    assert codec.decode_event(data) == codec.decode_event(line("ADDED", POD))


@pytest.mark.spec("R29")
def test_a_bookmark_is_partial_metadata(codec: Codec[Any]) -> None:
    metadata = {"resourceVersion": "9", "creationTimestamp": None}
    bookmark = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {"containers": None},
    }

    event = codec.decode_event(line("BOOKMARK", bookmark))

    assert event.type == "BOOKMARK"
    assert isinstance(event.object, PartialObjectMetadata)
    assert event.object.metadata.resource_version == "9"
    assert event.object.metadata.annotations is None


def test_an_error_is_the_status_as_a_dictionary(codec: Codec[Any]) -> None:
    status = {"kind": "Status", "metadata": {}, "code": 410, "reason": "Expired"}

    assert codec.decode_event(line("ERROR", status)) == WatchEvent("ERROR", status)


@pytest.mark.spec("R28")
def test_unknown_types_pass_with_whatever_they_carry(codec: Codec[Any]) -> None:
    assert codec.decode_event(line("FOO", POD)) == WatchEvent("FOO", POD)
    assert codec.decode_event(b'{"type":"FOO"}') == WatchEvent("FOO", None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"not json",
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}x',
        b'{"type":"ADDED","object":5}',
        b'{"type":"ADDED","object":null}',
        b'{"type":"ADDED"}',
        b'{"type":5,"object":{}}',
        b'{"type":"BOOKMARK","object":{"metadata":5}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"},}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"a"},"x":' + b"[" * 100_000,
    ],
)
def test_anything_but_an_event_is_an_error(codec: Codec[Any], data: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.decode_event(data)
    with pytest.raises(DecodeError):
        codec.decode_events([line("MODIFIED", POD), data])


def test_an_error_shows_where_and_what(codec: Codec[Any]) -> None:
    with pytest.raises(DecodeError, match=r"begin with .*\"ADDED\""):
        codec.decode_event(b'{"type":"ADDED","object":5}')


def test_many_events_are_the_same_as_each(codec: Codec[Any]) -> None:
    lines = [line("ADDED", POD), line("BOOKMARK", {"metadata": {}}), line("DELETED", POD)]

    assert codec.decode_events(lines) == [codec.decode_event(each) for each in lines]
    assert codec.decode_events([]) == []


def page_body(**changes: object) -> bytes:
    metadata = {"resourceVersion": "50", "continue": "more", "remainingItemCount": 3}
    page = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": [ITEM]}
    return encode(page | changes)


def test_a_page_has_items_version_and_what_follows(codec: Codec[Any]) -> None:
    page = codec.decode_page(page_body())

    assert [codec.access.name(item) for item in page.items] == ["web"]
    assert (page.resource_version, page.continue_token, page.remaining) == ("50", "more", 3)


def test_go_writes_an_empty_list_as_null(codec: Codec[Any]) -> None:
    page = codec.decode_page(page_body(items=None, metadata={}))

    assert (page.items, page.resource_version, page.continue_token) == ([], "", "")
    assert page.remaining is None


@pytest.mark.spec("R13")
def test_a_table_is_refused(codec: Codec[Any]) -> None:
    table = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "rows": []}

    with pytest.raises(DecodeError, match="Table"):
        codec.decode_page(encode(table))


@pytest.mark.parametrize("data", [encode(POD), b"{}", b"[]", b"<html>", page_body()[:-5]])
def test_anything_but_a_list_is_refused(codec: Codec[Any], data: bytes) -> None:
    with pytest.raises(DecodeError):
        codec.decode_page(data)


@pytest.mark.parametrize("kind", [dict, LazyObject])
def test_items_take_their_type_from_the_list(kind: type) -> None:
    codec: Codec[Any] = codec_for(kind)

    page = codec.decode_page(page_body())
    items = codec.decode_items(encode([ITEM, POD]), ItemType("v1", "Pod"))

    for item in [*page.items, *items]:
        obj = item if isinstance(item, dict) else item.to_dict()
        assert (obj["apiVersion"], obj["kind"]) == ("v1", "Pod")


def test_dictionaries_are_complete_by_default() -> None:
    assert codec_for(dict).decode(encode(POD)) == POD
    short = {**POD, "metadata": {"name": "web", "resourceVersion": "7"}}
    codec = codec_for(dict, managed_fields=False)
    assert codec.decode(encode(POD)) == short
    assert codec.decode_event(line("ADDED", POD)).object == short
    assert codec.decode_page(page_body(items=[POD])).items == [short]


def test_a_codec_gives_up_managed_fields_if_it_has_them(codec: Codec[Any]) -> None:
    trimmed = codec.without_managed_fields()
    decoded = trimmed.decode(encode(POD))
    if isinstance(decoded, dict):
        assert "managedFields" not in decoded["metadata"]
        assert trimmed.without_managed_fields() is trimmed
    else:
        assert trimmed is codec


def test_metadata_that_is_malformed_costs_shortcut_and_not_object() -> None:
    odd = {"metadata": {"name": "a", "labels": {"n": 1}, "managedFields": [{}]}, "spec": {}}
    trimmed = codec_for(dict, managed_fields=False)
    assert trimmed.decode(encode(odd)) == {
        "metadata": {"name": "a", "labels": {"n": 1}},
        "spec": {},
    }
    assert trimmed.decode(encode({"metadata": None})) == {"metadata": None}


@pytest.mark.spec("R14")
@pytest.mark.parametrize("wrap", [bytearray, memoryview])
def test_nothing_refers_to_the_bytes_that_came_in(codec: Codec[Any], wrap: type) -> None:
    array = bytearray(b"[" + encode(POD) + b"]")

    items = codec.decode_items(wrap(array) if wrap is memoryview else array)
    # A view that something still holds would make this a BufferError.
    array.extend(b"x" * 10_000)
    array[:] = b"y" * len(array)

    assert items == [codec.decode(encode(POD))]


def test_encoding_gives_back_what_was_decoded(codec: Codec[Any]) -> None:
    obj = codec.decode(encode(POD))

    assert codec.decode(codec.encode(obj)) == obj


def test_access_fits_the_representation() -> None:
    assert codec_for(dict).access is DICT_ACCESS
    assert codec_for(LazyObject).access is STRUCT_ACCESS
    assert codec_for(SlimPod).access is STRUCT_ACCESS


class NoMetadata(msgspec.Struct):
    spec: dict[str, Any]


@pytest.mark.parametrize("kind", [int, str, object, NoMetadata])
def test_other_classes_are_refused_by_name(kind: type) -> None:
    with pytest.raises(TypeError, match=kind.__name__):
        codec_for(kind)


class Salvaged(msgspec.Struct):
    """Takes only sizes above zero, and makes do with any."""

    metadata: dict[str, Any]
    size: Annotated[int, msgspec.Meta(gt=0)] = 1
    wrong: str = ""

    @classmethod
    def salvaged(cls, data: bytes, error: str) -> Salvaged:
        loose = msgspec.json.decode(data, type=dict[str, dict[str, Any] | int])
        assert isinstance(loose["metadata"], dict)
        return cls(loose["metadata"], wrong=error)


GOOD, BAD = b'{"metadata":{"name":"a"},"size":3}', b'{"metadata":{"name":"b"},"size":0}'


def test_a_malformed_object_does_not_cost_the_others() -> None:
    codec = codec_for(Salvaged)
    page = codec.decode_page(b'{"kind":"XList","metadata":{},"items":[%b,%b]}' % (GOOD, BAD))
    items = codec.decode_items(b"[%b,%b]" % (GOOD, BAD))
    lines = [b'{"type":"ADDED","object":%b}' % obj for obj in (GOOD, BAD)]
    events = codec.decode_events(lines)
    assert [event.type for event in events] == ["ADDED", "ADDED"]
    assert codec.decode_event(lines[1]) == events[1]
    for first, second in (page.items, items, [event.object for event in events]):
        assert (first.size, first.wrong) == (3, "")
        assert second.metadata["name"] == "b"
        assert second.wrong == "Expected `int` >= 1 - at `$.size`"
    assert codec.decode(BAD).wrong


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"metadata":"b","size":0}', b'{"metadata":{},"size":']
)
def test_what_cannot_be_salvaged_is_an_error_as_ever(data: bytes) -> None:
    codec = codec_for(Salvaged)
    for decode, text in (
        (codec.decode, data),
        (codec.decode_items, b"[%b]" % data),
        (codec.decode_page, b'{"kind":"XList","metadata":{},"items":[%b]}' % data),
        (codec.decode_event, b'{"type":"ADDED","object":%b}' % data),
    ):
        with pytest.raises(DecodeError):
            decode(text)


@pytest.mark.parametrize("depth", [1200, 9990])
def test_an_object_that_is_nested_deeply_makes_no_list_and_no_watch_unreadable(depth: int) -> None:
    # As deep as a server takes it, where a definition keeps unknown fields.
    deep = '{"a}":[' * (depth // 2) + "1" + "]}" * (depth // 2)
    obj = '{"metadata":{"name":"x","resourceVersion":"5"},"spec":{"odd":' + deep + "}}"
    codec = codec_for(PartialObjectMetadata)
    envelope = (
        '{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[%s,%s]}'
    )
    names = [
        codec.decode(obj.encode()),
        *codec.decode_items(f"[{obj},{obj}]".encode()),
        *codec.decode_page((envelope % (obj, obj)).encode()).items,
        *(
            one.object
            for one in codec.decode_events([b'{"type":"ADDED","object":%b}' % obj.encode()])
        ),
    ]
    assert [one.metadata.name for one in names] == ["x"] * 6


def test_what_is_cut_off_by_depth_is_null_whatever_strings_hold() -> None:
    inner = '{"]\\\\":["{",[]]}'
    text = "[" * 199 + f'{inner},"\\"[",[2]' + "]" * 199
    cut = "[" * 199 + '{"]\\\\":null},"\\"[",[2]' + "]" * 199
    assert without_depths(text.encode()) == cut.encode()
    began = time.process_time()
    without_depths(b'"' + b'\\"' * 500_000)
    assert time.process_time() - began < 2
