"""The bytes that producers send: whole HTTP bodies, made before the clock starts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

from benchmarks.pods import Json, make_bookmark, make_event, make_list, make_pod
from kubeloop.objects.meta import PartialObjectMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_KEYS = 5000


def _offered(group_version: str, *resources: tuple[str, str, bool]) -> Json:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    listed = [
        {
            "name": name,
            "singularName": kind.lower(),
            "kind": kind,
            "namespaced": namespaced,
            "verbs": verbs,
        }
        for name, kind, namespaced in resources
    ]
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": listed}


_EXTENSIONS = {"groupVersion": "apiextensions.k8s.io/v1", "version": "v1"}
DISCOVERY: dict[str, Json] = {
    "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            {
                "name": "apiextensions.k8s.io",
                "versions": [_EXTENSIONS],
                "preferredVersion": _EXTENSIONS,
            }
        ],
    },
    "/api/v1": _offered("v1", ("pods", "Pod", True), ("namespaces", "Namespace", False)),
    "/apis/apiextensions.k8s.io/v1": _offered(
        "apiextensions.k8s.io/v1", ("customresourcedefinitions", "CustomResourceDefinition", False)
    ),
}
"""What a client may ask before it asks for pods, by path; the older documents, which all understand."""
# Makes the 5 kB pods of events into the 6 kB ones of lists.
LIST_PADDING = 900


def watch_lines(
    count: int, *, alive: int = 0, keys: int = _KEYS, seed: int = 1, bookmarks: bool = True
) -> Iterator[bytes]:
    """Yield the lines of a watch over pods of which the first `alive` exist; 1 % are bookmarks.

    Each change is of a random pod: added where it is absent, else modified, or deleted one time in
    twelve. From an empty store the stream is mostly additions first, then mostly modifications.
    """
    rng = random.Random(seed)
    present = set(range(alive))
    for number in range(1, count + 1):
        yield (
            _encode(
                _next_event(rng, alive + number, present, max(keys, alive), bookmarks=bookmarks)
            )
            + b"\n"
        )


def _next_event(
    rng: random.Random, version: int, present: set[int], keys: int, *, bookmarks: bool
) -> Json:
    if bookmarks and rng.random() < 0.01:
        return make_bookmark(version)
    index = rng.randrange(keys)
    if index not in present:
        present.add(index)
        return make_event("ADDED", index, version)
    if rng.random() < 1 / 12:
        present.remove(index)
        return make_event("DELETED", index, version)
    return make_event("MODIFIED", index, version)


def tally(lines: Iterable[bytes]) -> dict[str, int]:
    """Count what a complete reader of a stream must have seen, and what must be left."""
    changes = last = 0
    alive: set[tuple[str, str]] = set()
    for line in lines:
        event = _decode_event(line)
        if event.type == "BOOKMARK":
            continue
        changes += 1
        meta = event.object.metadata
        last = int(meta.resource_version)
        key = (meta.namespace, meta.name)
        (alive.discard if event.type == "DELETED" else alive.add)(key)
    return {"changes": changes, "live": len(alive), "last": last}


def initial_stream(count: int, version: int) -> Iterator[bytes]:
    """Yield the lines of a streaming list, with the bookmark that ends it."""
    for index in range(count):
        event = make_event("ADDED", index, index + 1, padding=LIST_PADDING)
        yield _encode(event) + b"\n"
    bookmark = make_bookmark(version)
    bookmark["object"]["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
    yield _encode(bookmark) + b"\n"


def list_body(first: int, count: int, version: int, continue_token: str = "") -> bytes:
    """Return one list of pods."""
    items = [
        make_pod(index, index + 1, padding=LIST_PADDING) for index in range(first, first + count)
    ]
    return _encode(make_list(items, version, continue_token))


def chunked(data: bytes, *, seed: int = 2, largest: int = 16_384) -> bytes:
    """Cut a body into chunks of random sizes, without regard to lines; the last one is missing."""
    rng = random.Random(seed)
    pieces: list[bytes] = []
    position = 0
    while position < len(data):
        piece = data[position : position + rng.randint(1, largest)]
        pieces.append(b"%x\r\n%b\r\n" % (len(piece), piece))
        position += len(piece)
    return b"".join(pieces)


class _Event(msgspec.Struct):
    type: str
    object: PartialObjectMetadata


_decode_event = msgspec.json.Decoder(_Event).decode


def _encode(obj: object) -> bytes:
    return msgspec.json.encode(obj)


def watch_line(index: int) -> bytes:
    """Return one pod's ADDED event, of the size that lists have."""
    return _encode(make_event("ADDED", index, index + 1, padding=LIST_PADDING))
