"""The twenty torture scenarios: what goes wrong in production, all at once, and what must come of it."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import json
import random
import time
from typing import Any, cast

import pytest
from tests.informer.support import (
    EXACT,
    STREAMING,
    Recorder,
    RecordingMetrics,
    ScriptedSource,
    ScriptedStream,
    added,
    bookmark,
    deleted,
    end_bookmark,
    informing,
    make_informer,
    modified,
    now,
    pod,
    settle,
    versions,
)

from kubeloop.client.errors import Status, TooManyRequests
from kubeloop.client.wire.watch import WireWatch
from kubeloop.informer import Added, Deleted, Updated
from kubeloop.informer.reflector.source import Expectation, ListFailed
from kubeloop.objects.codec import codec_for
from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.list_watch import Page, WatchEvent
from kubeloop.testing.fake_errors import gone
from kubeloop.testing.fake_source import FakeSource
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


def never_resync(informer, handle) -> None:
    """Take the flag away that a handler starts with, as a resync check would."""
    listener = handle.listener_of(informer)
    assert listener is not None
    listener.syncing = False


EXPIRED = WatchEvent("ERROR", {"code": 410, "reason": "Expired"})


@pytest.mark.spec("X1")
async def test_x1_watch_dies_in_middle_of_initial_stream():
    source = ScriptedSource(
        watches=[
            ScriptedStream([added("p1", 1)]),
            ScriptedStream([added("p2", 2), end_bookmark(5)], ends=False),
        ],
        supports_watch_list=True,
    )
    informer = make_informer(source, options=STREAMING)
    recorder, synced_at = Recorder(), []
    informer.add_handler(on_event=recorder)
    async with informer.running():
        waiting = asyncio.create_task(informer.wait_synced())
        waiting.add_done_callback(lambda _: synced_at.append(versions(informer.store)))
        await asyncio.sleep(0.5)
        assert not informer.has_synced
        await asyncio.sleep(1)
        assert recorder.brief == [("initial", "p2", "2")]
        assert synced_at == [{"p2": "2"}]


@pytest.mark.spec("X2")
@pytest.mark.parametrize("list_is_gone", [False, True])
async def test_x2_410_on_resume_after_missed_deletions(list_is_gone):
    answer = Page([pod("a", 1), pod("c", 8)], "9")
    source = ScriptedSource(
        [
            Page([pod("a", 1), pod("b", 2), pod("c", 3)], "3"),
            *([gone("3")] if list_is_gone else []),
            answer,
        ],
        [ScriptedStream([EXPIRED])],
    )
    informer = make_informer(source)
    syncing, other = Recorder(), Recorder()
    informer.add_handler(on_event=syncing)
    handle = informer.add_handler(on_event=other)
    never_resync(informer, handle)
    async with informer.running():
        await asyncio.sleep(2)
        assert source.list_versions == (["0", "3", ""] if list_is_gone else ["0", "3"])
        assert syncing.brief[3:] == [
            ("stale", "b", "2"),
            ("update", "a", "1", "1"),
            ("update", "c", "3", "8"),
        ]
        assert other.brief[3:] == [("stale", "b", "2"), ("update", "c", "3", "8")]
        assert versions(informer.store) == {"a": "1", "c": "8"}


@pytest.mark.spec("X3")
async def test_x3_duplicate_events_after_a_resume():
    source = ScriptedSource(
        [Page([], "5")],
        [
            ScriptedStream([added("x", 6), modified("x", 7)]),
            ScriptedStream([modified("x", 7), added("x", 7)], ends=False),
        ],
    )
    informer = make_informer(source)
    syncing, other = Recorder(), Recorder()
    informer.add_handler(on_event=syncing)
    handle = informer.add_handler(on_event=other)
    never_resync(informer, handle)
    async with informer.running():
        await settle()
        expected = [("add", "x", "6"), ("update", "x", "6", "7")]
        assert other.brief == expected
        assert syncing.brief == expected + [("update", "x", "7", "7")] * 2
        assert versions(informer.store) == {"x": "7"}


@pytest.mark.spec("X4")
async def test_x4_versions_out_of_order_at_a_watch_from_0():
    synthetic = [added("a", 50), added("b", 20), added("c", 35)]
    source = ScriptedSource(
        [Page([], "0"), Page([pod("a", 50), pod("b", 20)], "0")],
        [
            ScriptedStream(list(synthetic)),
            ScriptedStream([*synthetic[:2], bookmark(60)]),
            ScriptedStream(ends=False),
        ],
    )
    async with informing(source) as (informer, recorder):
        await asyncio.sleep(2)
        assert source.watch_versions == ["0", "0", "60"]
        assert len(source.lists) == 2, "listed anew: what was deleted meanwhile must be noticed"
        assert versions(informer.store) == {"a": "50", "b": "20"}
        assert ("stale", "c", "35") in recorder.brief


@pytest.mark.spec("X5")
async def test_x5_two_quiet_hours_of_bookmarks_under_compaction():
    source = FakeSource[Any](version=100)
    source.create("a")
    history: list[int] = []

    async def others_write():
        while True:
            await asyncio.sleep(30)
            source.bump(7)
            history.append(source.version)

    async def compact():
        while True:
            await asyncio.sleep(300)
            # etcd keeps the last five minutes.
            source.compact(history[max(0, len(history) - 10)])

    options = dataclasses.replace(EXACT, rand=random.Random(5).random)
    async with informing(source, options=options) as (informer, recorder):
        writers = [asyncio.create_task(others_write()), asyncio.create_task(compact())]
        await asyncio.sleep(7200)
        for writer in writers:
            writer.cancel()
        assert len(source.lists) == 1
        assert recorder.brief == [("initial", "a", "101")]
        assert len(source.watches) > 10
        asked = [int(request.resource_version) for request in source.watches]
        assert asked == sorted(set(asked)), "each watch resumes at a newer bookmark"
        for request in source.watch_requests[1:]:
            # Bookmarks come every minute and the version moves every 30 s.
            behind = 101 + 7 * int(request.at // 30) - int(request.options.resource_version)
            assert behind <= 7 * 2
        assert informer.store.version == informer.last_version


def by_owner(obj):
    return [owner["uid"] for owner in obj["metadata"].get("ownerReferences", ())]


def owned(uid: str) -> dict[str, Any]:
    return {"uid": f"pod-of-{uid}", "ownerReferences": [{"uid": uid}]}


@pytest.mark.spec("X6")
async def test_x6_the_same_name_with_a_new_uid_between_watches():
    old, new = (
        pod("web", 5, metadata=owned("uid1")),
        pod("web", 9, metadata=owned("uid2")),
    )
    source = ScriptedSource([Page([old], "5"), Page([new], "9")], [ScriptedStream([EXPIRED])])
    informer = make_informer(source, indexers={"owner": by_owner})
    plain, split = Recorder(), Recorder()
    informer.add_handler(on_event=plain)
    informer.add_handler(on_event=split, split_on_uid_change=True)
    async with informer.running():
        await asyncio.sleep(2)
        assert plain.brief == [("initial", "web", "5"), ("update", "web", "5", "9")]
        assert split.brief == [("initial", "web", "5"), ("stale", "web", "5"), ("add", "web", "9")]
        # A controller that maps to owners finds both of them in the update.
        update = plain.notes[1]
        assert [*by_owner(update.old), *by_owner(update.new)] == ["uid1", "uid2"]
        assert informer.store.index_values("owner") == ["uid2"]


@pytest.mark.spec("X6")
async def test_x6_with_the_delete_seen_before_the_list():
    old, new = pod("web", 5, metadata=owned("uid1")), pod("web", 9, metadata=owned("uid2"))
    gone_now = WatchEvent("DELETED", pod("web", 6, metadata=owned("uid1")))
    source = ScriptedSource(
        [Page([old], "5"), Page([new], "9")], [ScriptedStream([gone_now, EXPIRED])]
    )
    async with informing(source) as (_, recorder):
        await asyncio.sleep(2)
        assert recorder.brief == [
            ("initial", "web", "5"),
            ("delete", "web", "6"),
            ("add", "web", "9"),
        ]


@pytest.mark.spec("X7")
async def test_x7_handlers_join_while_a_big_relist_is_applied():
    count = 50_000
    before = [pod(f"pod-{n}", n + 1) for n in range(0, count, 2)]
    after = [pod(f"pod-{n}", n + 100_000) for n in range(count)]
    source = ScriptedSource([Page(before, "1"), Page(after, "2")], [ScriptedStream([EXPIRED])])
    informer = make_informer(source)
    informer.add_handler(on_event=Recorder())
    late: list[Any] = []
    async with informer.running():
        await eventually(lambda: informer.has_synced, every=0)
        await asyncio.sleep(0.8)  # the relist begins now, and time stands still while it is applied
        for turn in itertools.count():
            await asyncio.sleep(0 if turn < 800 else 0.001)
            if turn % 60 == 0 and len(late) < 12:
                recorder, promised = Recorder(), len(informer.store)
                late.append((recorder, informer.add_handler(on_event=recorder), promised))
            for recorder, handle, promised in late:
                assert handle.has_synced == (recorder.initial == promised)
            if turn > 800 and late[-1][1].has_synced:
                break
        await settle()
        state = dict(informer.store.items())
        assert {promised for _, _, promised in late} == {count // 2, count}
        for recorder, _, _ in late:
            assert recorder.state == state
            adds = [note.key for note in recorder.notes if isinstance(note, Added)]
            assert len(adds) == len(set(adds)) == count


@pytest.mark.spec("X8")
async def test_x8_slow_handler_with_100_000_events_beside_fast_one():
    count = 100_000
    events = [modified(f"pod-{n % 1000}", n + 2) for n in range(count)]
    stream = ScriptedStream(*(events[n : n + 100] for n in range(0, count, 100)), ends=False)
    del events
    source = ScriptedSource([Page([], "1")], [stream])
    informer = make_informer(source)
    fast_done: list[float] = []
    fast, slow = [0], [0]
    last_slow: dict[str, int] = {}
    peak = 0

    def on_fast(_note):
        fast[0] += 1
        if fast[0] == count:
            fast_done.append(now())

    async def on_slow(note):
        await asyncio.sleep(0.001)
        slow[0] += 1
        obj = note.obj if isinstance(note, Added) else note.new
        version = int(obj["metadata"]["resourceVersion"])
        assert version > last_slow.get(note.key, 0)
        last_slow[note.key] = version

    informer.add_handler(on_event=on_fast)
    handle = informer.add_handler(on_event=on_slow)
    busiest, renewals = 0.0, 0

    async def watch_the_loop():
        nonlocal busiest, peak
        spent = time.thread_time()
        while slow[0] < count:
            await asyncio.sleep(0 if fast[0] < count else 0.01)
            busiest = max(busiest, time.thread_time() - spent)
            spent = time.thread_time()
            peak = max(peak, handle.pending)

    async def renew_a_lease():
        nonlocal renewals
        while slow[0] < count:
            await asyncio.sleep(2)
            renewals += 1

    gc.collect()
    gc.disable()  # collections are the collector guard's business, and have tests of their own
    try:
        async with informer.running():
            await asyncio.gather(watch_the_loop(), renew_a_lease())
            assert fast_done[0] < 1, "the fast one does not wait for the slow one"
            assert now() == pytest.approx(count * 0.001, rel=0.05)
            assert slow == [count]
            assert last_slow["default/pod-999"] == count + 1
            assert peak > count * 0.9, "the slow one's events waited in its own buffer"
            assert handle.pending == 0
            assert renewals >= 50
            assert informer.store.version == str(count + 1)
    finally:
        gc.enable()
    assert busiest < 0.05, f"the loop was held for {busiest * 1000:.0f} ms of CPU time"


@pytest.mark.spec("X9")
async def test_x9_the_api_server_restarts():
    source = FakeSource[Any](bookmark_every=0)
    source.create("a")
    async with informing(source) as (_, recorder):
        await asyncio.sleep(10)
        source.refuse_connections()
        await asyncio.sleep(20)
        source.refuse_connections(refuse=False)
        source.fail_watches(TooManyRequests(Status(code=429), retry_after=3.0))
        source.update("a", n=1)
        await asyncio.sleep(60)
        assert len(source.lists) == 1
        assert recorder.brief == [("initial", "a", "1"), ("update", "a", "1", "2")]
        times = [request.at for request in source.watch_requests]
        assert times == pytest.approx([0, 10, 10.8, 12.4, 15.6, 22, 34.8, 60.4], abs=0.01)
        assert {request.resource_version for request in source.watches} == {"1"}


@pytest.mark.spec("X9")
async def test_x9_two_hundred_informers_spread_their_requests():
    source = FakeSource[Any](bookmark_every=0)
    source.create("a")
    rand = random.Random(9)
    options = dataclasses.replace(EXACT, rand=rand.random)
    informers = [make_informer(source, options=options) for _ in range(200)]
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    await asyncio.sleep(10)
    before = len(source.watches)
    assert before == 200
    source.refuse_connections()
    await asyncio.sleep(20)
    source.refuse_connections(refuse=False)
    await asyncio.sleep(60)
    assert len(source.lists) == 200
    assert len(source.open_streams) == 200
    times = sorted(request.at for request in source.watch_requests[before:])
    assert len(times) <= 200 * 1.0 * 25, "no more than one request a second for each"
    retries = times[200:]  # the first try of each comes at once, when the connection breaks
    for second in range(10, 70):
        burst = sum(second <= at < second + 0.1 for at in retries)
        assert burst <= 60, f"{burst} requests within 100 ms at {second} s"
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.spec("X10")
async def test_x10_a_resync_races_deletes():
    source = FakeSource[Any]()
    for name in ("x", "y"):
        source.create(name)
    async with informing(source, resync=10.0) as (informer, recorder):
        await asyncio.sleep(9)
        recorder.clear()
        asyncio.get_running_loop().call_at(10.0, lambda: source.delete("x"))
        await asyncio.sleep(5)
        assert recorder.brief in (
            [("delete", "x", "3"), ("update", "y", "2", "2")],
            [("update", "x", "1", "1"), ("update", "y", "2", "2"), ("delete", "x", "3")],
        )
        assert versions(informer.store) == {"y": "2"}


@pytest.mark.spec("X10")
async def test_x10_with_the_delete_already_queued():
    source = FakeSource[Any]()
    for name in ("x", "y"):
        source.create(name)
    async with informing(source, resync=10.0) as (informer, recorder):
        await asyncio.sleep(9)
        recorder.clear()
        # Both entries are in the queue before the consumer gets its turn.
        change = informer._reflector._preparer.delete(source.delete("x"))
        informer._queue.put([change])
        informer._queue.resync()
        await asyncio.sleep(0.5)
        assert recorder.brief == [("delete", "x", "3"), ("update", "y", "2", "2")]
        assert versions(informer.store) == {"y": "2"}


@pytest.mark.spec("X11")
async def test_x11_etcd_is_restored_from_backup_and_versions_go_back():
    source = FakeSource[Any](version=2990)
    for number in range(10):
        source.create(f"old-{number}")
    assert source.version == 3000
    async with informing(source) as (informer, recorder):
        source.bump(1990)
        for number in range(10):
            source.create(f"new-{number}")
        source.update("old-0", n=1)
        source.delete("old-1")
        await settle()
        assert informer.last_version == "5002"
        recorder.clear()
        source.restore(3000)
        await asyncio.sleep(30)
        assert [request.resource_version for request in source.lists] == ["0", "5002", ""]
        assert versions(informer.store) == {f"old-{n}": str(2991 + n) for n in range(10)}
        stale = [entry[1] for entry in recorder.brief if entry[0] == "stale"]
        assert stale == [f"new-{n}" for n in range(10)]
        assert ("update", "old-0", "5001", "2991") in recorder.brief
        assert ("add", "old-1", "2992") in recorder.brief
        assert informer.store.version == informer.last_version == "3000"
        source.create("after")
        await settle()
        assert informer.store.version == "3001"


class FlakyPages(FakeSource[Any]):
    """Loses its continue tokens before a given page of the next list."""

    lose_before_page = 0
    hang_at_page = 0
    page = 0

    async def list(self, options):
        self.page = self.page + 1 if options.continue_token else 1
        if self.page == self.lose_before_page:
            self.lose_before_page = 0
            self.expire_tokens()
        if self.page == self.hang_at_page:
            await asyncio.sleep(1e6)
        return await super().list(options)


@pytest.mark.spec("X12")
async def test_x12_continue_token_expires_in_middle_of_list():
    source = FlakyPages(watch_cache=False, bookmark_every=0)
    source.create("first")
    options = dataclasses.replace(EXACT, page_size=5)
    async with informing(source, options=options) as (informer, recorder):
        source.drop_watches(lose_pending=True)
        for number in range(999):
            source.create(f"pod-{number}")
        source.compact()
        source.lose_before_page = 37
        stores = set()
        asyncio.get_running_loop().call_at(0.8, lambda: stores.add(len(informer.store)))
        await asyncio.sleep(2)
        assert len(source.lists) == 1 + 37 + 1
        last = source.lists[-1]
        assert (last.resource_version, last.limit, last.continue_token) == ("1", 0, "")
        assert len(informer.store) == 1000
        adds = [note.key for note in recorder.notes if isinstance(note, Added)]
        assert len(adds) == len(set(adds)) == 1000
        assert stores == {1}


@pytest.mark.spec("X12")
async def test_x12_a_truncated_list_leaves_the_store_unchanged():
    source = FlakyPages(watch_cache=False, bookmark_every=0)
    source.create("first")
    informer = make_informer(source, options=dataclasses.replace(EXACT, page_size=5))
    async with informer.running():
        await settle()
        source.drop_watches(lose_pending=True)
        for number in range(999):
            source.create(f"pod-{number}")
        source.compact()
        source.hang_at_page = 36
        await asyncio.sleep(100)
        assert len(source.lists) == 1 + 35
        assert versions(informer.store) == {"first": "1"}
    assert versions(informer.store) == {"first": "1"}


class Bytes:
    """A connection that delivers a body in given pieces, then ends."""

    error = None

    def __init__(self, pieces):
        self._pieces = list(pieces)
        self.closed = 0

    async def read(self):
        return self._pieces.pop(0) if self._pieces else b""

    async def close(self):
        self.closed += 1

    def abort(self):
        self.closed += 1


def line(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}, ensure_ascii=False).encode() + b"\n"


def cut(data: bytes, rand: random.Random, most: int) -> list[bytes]:
    pieces, position = [], 0
    while position < len(data):
        size = rand.randint(1, most)
        pieces.append(data[position : position + size])
        position += size
    return pieces


@pytest.mark.spec("X13")
@pytest.mark.parametrize("seed", range(4))
async def test_x13_half_event_at_end_huge_lines_and_split_characters(seed):
    rand = random.Random(seed)
    huge = modified("huge", 12, spec={"blob": "é" * 750_000}).object
    tail = line("MODIFIED", pod("x", 11, spec={"name": "Zoë"}))
    half = tail[: rand.randrange(5, len(tail) - 1)]
    bodies = [
        [line("ADDED", pod("x", 10)) + half],
        cut(tail + line("ADDED", huge) + line("ADDED", pod("ü", 13)), rand, 60_000),
        [b"".join(line("ADDED", pod(f"many-{n}", 14 + n)) for n in range(300))],
    ]
    bodies[0] = cut(bodies[0][0], rand, 3)
    connections = [Bytes(pieces) for pieces in bodies]
    streams = [
        WireWatch(cast("Any", connection), codec=codec_for(dict), url="fake")
        for connection in connections
    ]
    source = ScriptedSource([Page([], "9")], [*streams])
    async with informing(source) as (informer, recorder):
        await settle()
        assert source.watch_versions == ["9", "10", "13", "313"]
        assert [entry for entry in recorder.brief if entry[1] == "x"] == [
            ("add", "x", "10"),
            ("update", "x", "10", "11"),
        ]
        assert informer.lister.get("default", "x")["spec"] == {"name": "Zoë"}
        assert len(informer.lister.get("default", "huge")["spec"]["blob"]) == 750_000
        assert informer.lister.find("default", "ü") is not None
        assert len(informer.store) == 303
        assert [connection.closed for connection in connections] == [1, 1, 1]


@pytest.mark.spec("X14")
async def test_x14_a_black_holed_connection():
    source = FakeSource[Any](bookmark_every=0)
    source.create("a")
    async with informing(source) as (informer, recorder):
        await asyncio.sleep(100)
        source.stall_watches()
        source.update("a", n=1)
        source.create("b")
        await asyncio.sleep(900)
        assert source.watch_requests[1].at == pytest.approx(305)
        assert recorder.times[1:] == pytest.approx([305, 305])
        assert recorder.brief[1:] == [("update", "a", "1", "2"), ("add", "b", "3")]
        assert len(source.lists) == 1
        assert len(source.open_streams) == 1
        assert informer.last_version == "3"


def poisoned(obj):
    if obj.get("poison"):
        raise ValueError("this object is poison")
    return obj


@pytest.mark.spec("X15")
async def test_x15_a_poison_object_in_a_watch():
    source = FakeSource[Any](version=1)
    metrics = RecordingMetrics()
    async with informing(source, transform=poisoned, metrics=metrics) as (informer, _):
        for number in range(1000):
            source.create(f"pod-{number}", poison=number == 999)
        await settle()
        assert len(informer.store) == 999
        assert informer.last_version == "1001"
        assert metrics.values("rejected", "reason") == ["transform"]
        assert len(source.watches) == 1


@pytest.mark.spec("X15")
async def test_x15_a_poison_object_in_a_list():
    source = FakeSource[Any]()
    errors: list[Any] = []
    for number in range(1000):
        source.create(f"pod-{number}")
    async with informing(source, transform=poisoned, on_error=errors.append) as (informer, _):
        assert len(informer.store) == 1000
        source.drop_watches(lose_pending=True)
        source.update("pod-500", poison=True)
        source.create("new")
        source.compact()
        await asyncio.sleep(5)
        assert {type(error) for error in errors} == {ListFailed}
        assert "poison" in str(errors[0])
        assert len(informer.store) == 1000
        assert informer.lister.find("default", "new") is None
        source.update("pod-500", poison=False)
        await asyncio.sleep(30)
        assert len(informer.store) == 1001


@pytest.mark.spec("X15")
async def test_x15_poison_in_the_first_list_blocks_sync_unless_skipped():
    source = FakeSource[Any]()
    for number in range(10):
        source.create(f"pod-{number}", poison=number == 5)
    metrics = RecordingMetrics()
    strict = make_informer(source, transform=poisoned, on_error=lambda _: None)
    lenient = make_informer(
        source,
        transform=poisoned,
        metrics=metrics,
        options=dataclasses.replace(EXACT, skip_rejected=True),
    )
    async with strict.running(), lenient.running():
        await asyncio.sleep(20)
        assert not strict.has_synced
        assert len(strict.store) == 0
        assert lenient.has_synced
        assert len(lenient.store) == 9
        assert metrics.values("rejected", "reason") == ["transform"]


@pytest.mark.spec("X16")
async def test_x16_a_handler_raises_on_its_first_initial_add():
    source = FakeSource[Any]()
    for name in ("a", "b", "c"):
        source.create(name)
    calls: list[Any] = []

    def fails_once(note):
        calls.append((now(), note.key))
        if len(calls) == 1:
            raise ValueError("not ready yet")

    informer = make_informer(source)
    other = Recorder()
    handle = informer.add_handler(on_event=fails_once)
    informer.add_handler(on_event=other)
    async with informer.running():
        await settle()
        assert len(other.notes) == 3
        assert not handle.has_synced
        assert await handle.wait_synced()
        assert now() == 1.0
        assert calls == [(0, "default/a"), (1, "default/b"), (1, "default/c")]


@pytest.mark.spec("X16")
async def test_x16_a_removal_during_the_pause_is_immediate():
    source = FakeSource[Any]()
    source.create("a")
    source.create("b")
    informer = make_informer(source)
    handle = informer.add_handler(on_add=lambda obj: 1 / 0)
    async with informer.running():
        await asyncio.sleep(0.25)
        await informer.remove_handler(handle)
        assert now() == 0.25


@pytest.mark.spec("X18")
async def test_x18_a_handler_rejoins_with_10_000_events_pending():
    source = FakeSource[Any](batch=500)
    source.create("seed")
    informer = make_informer(source)
    old_calls: list[str] = []

    async def slow(note):
        old_calls.append(note.key)
        await asyncio.sleep(0.1)

    handle = informer.add_handler(on_event=slow)
    async with informer.running():
        await settle()
        for number in range(10_000):
            source.create(f"pod-{number}")
        await settle()
        assert handle.pending > 9_000
        await informer.remove_handler(handle)
        count = len(old_calls)
        anew = Recorder()
        again = informer.add_handler(on_event=anew)
        source.create("afterwards")
        await asyncio.sleep(5)
        assert len(old_calls) == count, "the old registration is silent"
        assert again.has_synced
        assert sum(note.initial for note in anew.notes) == 10_001
        assert [note.key for note in anew.notes if not note.initial] == ["default/afterwards"]


@pytest.mark.spec("X18")
async def test_x18_handler_removes_itself_and_joins_again_from_inside_callback():
    source = FakeSource[Any]()
    for number in range(100):
        source.create(f"pod-{number}")
    informer = make_informer(source)
    anew = Recorder()
    calls: list[str] = []

    handles: list[Any] = []

    async def renew(note):
        calls.append(note.key)
        await informer.remove_handler(handles[-1])
        handles.append(informer.add_handler(on_event=anew))

    handles.append(informer.add_handler(on_event=renew))
    async with informer.running():
        await asyncio.sleep(1)
        assert len(calls) == 1
        assert len(anew.notes) == 100
        assert all(note.initial for note in anew.notes)


@pytest.mark.spec("X19")
async def test_x19_object_flips_in_and_out_of_selector_across_reconnects():
    source = FakeSource[Any](bookmark_every=0)
    source.create("flip", labels={"app": "db"})
    options = dataclasses.replace(EXACT, label_selector="app=web")
    indexers = {"app": lambda obj: obj["metadata"]["labels"].values()}
    rand = random.Random(19)
    async with informing(source, options=options, indexers=indexers) as (informer, recorder):
        for flip in range(1000):
            inside = flip % 2 == 0
            source.update("flip", labels={"app": "web" if inside else "db"})
            if flip in {250, 750}:
                source.drop_watches()
            if flip == 500:
                source.drop_watches(lose_pending=True)
                source.compact()
            if rand.random() < 0.1:
                await asyncio.sleep(rand.random())
        await asyncio.sleep(60)
        kinds = [type(note) for note in recorder.notes]
        assert all(
            (kind is Added) == (position % 2 == 0) or kind is Updated
            for position, kind in enumerate(kind for kind in kinds if kind is not Updated)
        )
        assert kinds.count(Updated) <= 1, "only the relist may repeat the object"
        assert len(informer.store) == 0
        assert informer.store.index_values("app") == []
        source.update("flip", labels={"app": "web"})
        await settle()
        assert informer.store.index_keys("app", "web") == ["default/flip"]


@pytest.mark.spec("X20")
async def test_x20_odd_events_of_every_kind_in_one_stream():
    service = pod("service", 90) | {"kind": "Service"}
    table = {"apiVersion": "meta.k8s.io/v1", "kind": "Table", "metadata": {"resourceVersion": "91"}}
    source = ScriptedSource([Page([pod("a", 1)], "5")] * 9, [ScriptedStream(ends=False)])
    expected = Expectation(representation=dict, gvk=GroupVersionKind("", "v1", "Pod"))
    options = dataclasses.replace(EXACT, expected=expected)
    async with informing(source, options=options) as (informer, recorder):
        stream = source.streams[0]
        recorder.clear()

        async def version_after(*events):
            stream.push(*events)
            await settle()
            return informer.last_version

        assert await version_after(WatchEvent("ADDED", service)) == "5"
        assert await version_after(WatchEvent("MODIFIED", table)) == "5"
        assert await version_after(bookmark(6)) == "6"
        assert await version_after(WatchEvent("BOOKMARK", {"metadata": {}})) == "6"
        assert await version_after(WatchEvent("FOO", pod("foo", 7))) == "7"
        assert await version_after(WatchEvent("ADDED", {"kind": "Pod"})) == "7"
        assert await version_after(WatchEvent("ADDED", None)) == "7"
        assert await version_after(modified("unknown", 8)) == "8"
        assert await version_after(deleted("never-seen", 9)) == "9"
        assert await version_after(deleted("a", 10), deleted("a", 10)) == "10"
        assert recorder.brief == [("add", "unknown", "8"), ("delete", "a", "10")]
        assert len(source.watches) == 1
        stream.push(WatchEvent("ERROR", {}))
        await asyncio.sleep(1)
        assert source.list_versions == ["0", "10"]
        source.streams[-1].push(WatchEvent("ERROR", {"code": 500}))
        await asyncio.sleep(2)
        assert len(source.lists) == 3
        source.streams[-1].push(WatchEvent("ERROR", "not even an object"))
        await asyncio.sleep(4)
        assert len(source.lists) == 4
        assert versions(informer.store) == {"a": "1"}
        assert any(isinstance(note, Deleted) and note.stale for note in recorder.notes)
