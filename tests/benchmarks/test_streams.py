from __future__ import annotations

import json

from benchmarks.streams import chunked, initial_stream, list_body, tally, watch_line, watch_lines
from kubeloop.http.framing import ChunkedFraming


def test_streams_are_the_same_in_every_run() -> None:
    assert list(watch_lines(200)) == list(watch_lines(200))
    assert list_body(0, 20, 5) == list_body(0, 20, 5)


def test_only_what_exists_is_modified_or_deleted() -> None:
    alive: set[str] = set()
    for line in watch_lines(3000, keys=50):
        event = json.loads(line)
        name = event["object"]["metadata"].get("name")
        match event["type"]:
            case "ADDED":
                assert name not in alive
                alive.add(name)
            case "MODIFIED":
                assert name in alive
            case "DELETED":
                alive.remove(name)
            case other:
                assert other == "BOOKMARK"


def test_versions_grow() -> None:
    versions = [
        int(json.loads(line)["object"]["metadata"]["resourceVersion"]) for line in watch_lines(500)
    ]

    assert versions == sorted(set(versions))


def test_the_tally_is_what_a_reader_must_end_with() -> None:
    lines = [*initial_stream(30, 1), *watch_lines(500, alive=30, keys=60)]
    alive: set[str] = set()
    changes = last = 0
    for line in lines:
        event = json.loads(line)
        if event["type"] == "BOOKMARK":
            continue
        changes += 1
        last = int(event["object"]["metadata"]["resourceVersion"])
        name = event["object"]["metadata"]["name"]
        alive = alive - {name} if event["type"] == "DELETED" else alive | {name}

    assert tally(lines) == {"changes": changes, "live": len(alive), "last": last}


def test_sizes_are_what_the_figures_say() -> None:
    events = [line for line in watch_lines(300) if b"BOOKMARK" not in line]

    assert 4_900 < sum(map(len, events)) / len(events) < 5_600
    assert 5_900 < len(list_body(0, 100, 1)) / 100 < 6_200
    assert 5_900 < len(watch_line(1)) < 6_300


def test_chunks_do_not_follow_lines_and_hold_the_same_bytes() -> None:
    data = b"".join(watch_lines(100))

    body = ChunkedFraming()
    pieces = body.feed(memoryview(chunked(data)))

    assert b"".join(pieces) == data
    assert not body.finished
    assert sum(bytes(piece).endswith(b"\n") for piece in pieces) < len(pieces) / 2


def test_the_initial_stream_ends_with_the_bookmark_that_says_so() -> None:
    *objects, last = map(json.loads, initial_stream(5, 9))

    assert [event["type"] for event in objects] == ["ADDED"] * 5
    assert last["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
