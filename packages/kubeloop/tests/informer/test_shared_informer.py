"""The shared informer as a whole: its life, its handlers, its promises."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any, cast

import pytest
from tests.informer.support import Recorder, informing, make_informer, now, settle, versions

from kubeloop.client.errors import Status
from kubeloop.informer import Added, Deleted, Handle, InformerStopped, Updated
from kubeloop.informer.reflector.source import ListFailed
from kubeloop.testing.fake_errors import api_error
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


def make_source(*names: str) -> FakeSource[Any]:
    source = FakeSource[Any]()
    for name in names:
        source.create(name)
    return source


def state_of(informer) -> str:
    return informer.state.value


async def test_an_informer_mirrors_the_server_and_notifies_its_handlers():
    source = make_source("a")
    async with informing(source) as (informer, recorder):
        source.create("b")
        source.update("a", spec=1)
        source.delete("a")
        await settle()
        assert informer.store.keys() == ["default/b"]
        assert recorder.brief == [
            ("initial", "a", "1"),
            ("add", "b", "2"),
            ("update", "a", "1", "3"),
            ("delete", "a", "4"),
        ]
        assert repr(informer) == (
            "<SharedInformer pods started, synced, <StoreView 1 objects at version 4>>"
        )


@pytest.mark.spec("I1")
async def test_an_informer_is_started_once_and_stopped_once(caplog):
    informer = make_informer(make_source("a"))
    assert state_of(informer) == "new"
    async with informer.running():
        await settle()
        assert state_of(informer) == "started"
        await asyncio.wait_for(informer.run(), 1)
        assert "already started" in caplog.text
    assert state_of(informer) == "stopped"
    await asyncio.wait_for(informer.run(), 1)
    assert state_of(informer) == "stopped"
    assert informer.has_synced, "what was synced stays readable"


async def test_a_running_informer_cannot_be_closed_under_its_feet():
    informer = make_informer(make_source("a"))
    async with informer.running():
        await settle()
        with pytest.raises(RuntimeError, match=r"cancel run\(\)"):
            informer.close()
        assert state_of(informer) == "started"
    informer.close()


@pytest.mark.spec("I2", "R73")
async def test_transform_and_error_handler_are_fixed_at_start():
    source = make_source("a")
    source.fail_lists(api_error(500))
    first: list[Any] = []
    last: list[Any] = []
    informer = make_informer(source)
    informer.set_error_handler(first.append)
    informer.set_error_handler(last.append)
    informer.set_transform(lambda obj: obj | {"by": "first"})
    informer.set_transform(lambda obj: obj | {"by": "last"})
    async with informer.running():
        assert await informer.wait_synced()
        for setter in (informer.set_transform, informer.set_error_handler):
            with pytest.raises(RuntimeError, match="only before the start"):
                setter(None)
        assert informer.store.list()[0]["by"] == "last"
    assert first == []
    assert [type(error) for error in last] == [ListFailed]


@pytest.mark.spec("I3")
async def test_early_handlers_get_every_notification_from_the_start():
    source = make_source("a", "b")
    informer = make_informer(source)
    recorders = [Recorder() for _ in range(5)]
    for recorder in recorders:
        informer.add_handler(on_event=recorder)
    async with informer.running():
        source.create("c")
        await settle()
    assert [len(recorder.notes) for recorder in recorders] == [3] * 5


@pytest.mark.spec("I4", "I16")
async def test_a_late_handler_sees_each_object_once_then_live_events():
    source = make_source("a", "b")
    async with informing(source) as (informer, _):
        late = Recorder()
        source.update("a", n=1)  # on its way: not in the store yet
        handle = informer.add_handler(on_event=late)
        source.create("c")
        await settle()
        assert late.brief == [
            ("initial", "a", "1"),
            ("initial", "b", "2"),
            ("update", "a", "1", "3"),
            ("add", "c", "4"),
        ]
        assert handle.has_synced


@pytest.mark.spec("I5")
async def test_adding_after_stop_is_error_and_removing_is_not():
    informer = make_informer(make_source("a"))
    handle = informer.add_handler(on_add=print)
    async with informer.running():
        await settle()
    with pytest.raises(InformerStopped, match="stopped already"):
        informer.add_handler(on_add=print)
    await informer.remove_handler(handle)


@pytest.mark.spec("I6")
async def test_one_handler_may_be_registered_twice_and_registrations_are_independent():
    source = make_source("a")
    seen: list[Any] = []
    informer = make_informer(source)
    first = informer.add_handler(on_event=seen.append)
    second = informer.add_handler(on_event=seen.append)
    assert first is not second
    async with informer.running():
        await settle()
        assert len(seen) == 2
        await informer.remove_handler(first)
        source.create("b")
        await settle()
        assert len(seen) == 3


@pytest.mark.spec("I7")
async def test_removal_is_idempotent_ignores_foreign_handles_and_refuses_other_things():
    source = make_source("a")
    recorder = Recorder()
    informer, other = make_informer(source), make_informer(make_source())
    handle = informer.add_handler(on_event=recorder)
    async with informer.running(), other.running():
        await settle()
        await other.remove_handler(handle)
        source.create("b")
        await settle()
        assert len(recorder.notes) == 2, "a foreign informer cannot remove it"
        await informer.remove_handler(handle)
        await informer.remove_handler(handle)
        source.create("c")
        await settle()
        assert len(recorder.notes) == 2
        with pytest.raises(TypeError, match="add_handler returned"):
            await informer.remove_handler(cast("Any", "handle"))


@pytest.mark.spec("I8")
async def test_a_removed_handler_drops_pending_and_new_notifications():
    source = make_source("a", "b", "c")
    seen = []

    async def slow(note):
        seen.append(note.key)
        await asyncio.sleep(10)

    informer = make_informer(source)
    handle = informer.add_handler(on_event=slow)
    async with informer.running():
        await asyncio.sleep(1)
        await informer.remove_handler(handle)
        assert now() == 10, "the running callback was awaited"
        source.create("d")
        await asyncio.sleep(100)
        assert seen == ["default/a"]


@pytest.mark.spec("I8")
async def test_a_draining_removal_delivers_what_is_pending_and_nothing_newer():
    source = make_source("a", "b")
    seen = []

    async def slow(note):
        await asyncio.sleep(10)
        seen.append(note.key)

    informer = make_informer(source)
    handle = informer.add_handler(on_event=slow)
    async with informer.running():
        await asyncio.sleep(1)
        removing = asyncio.create_task(informer.remove_handler(handle, drain=True))
        await settle()
        source.create("c")
        await removing
        assert now() == pytest.approx(20)
        assert seen == ["default/a", "default/b"]


@pytest.mark.spec("I8")
@pytest.mark.parametrize(("second", "expected"), [(True, ["a", "b", "c"]), (False, ["a"])])
async def test_second_removal_goes_on_with_drain_or_cuts_it_short(second, expected):
    source = make_source("a", "b", "c")
    seen: list[str] = []

    async def slow(obj):
        await asyncio.sleep(10)
        seen.append(obj["metadata"]["name"])

    informer = make_informer(source)
    handle = informer.add_handler(on_add=slow)
    async with informer.running():
        await asyncio.sleep(1)
        first = asyncio.create_task(informer.remove_handler(handle, drain=True))
        await settle()
        await informer.remove_handler(handle, drain=second)
        await first
        assert seen == expected


@pytest.mark.spec("I8")
@pytest.mark.parametrize("drain", [False, True])
async def test_a_callback_may_remove_its_own_handler(drain):
    source = make_source("a", "b")
    seen = []

    async def once(note):
        seen.append(note.key)
        await informer.remove_handler(handle, drain=drain)
        seen.append("removed")

    informer = make_informer(source)
    handle = informer.add_handler(on_event=once)
    async with informer.running():
        await asyncio.sleep(5)
    pending = ["default/b", "removed"] if drain else []
    assert seen == ["default/a", "removed", *pending]


@pytest.mark.spec("I8")
async def test_task_started_by_callback_may_remove_handler_and_be_awaited():
    source = make_source("a", "b")
    seen = []

    async def once(note):
        seen.append(note.key)
        await asyncio.create_task(informer.remove_handler(handle))

    informer = make_informer(source)
    handle = informer.add_handler(on_event=once)
    async with informer.running():
        await asyncio.sleep(5)
    assert seen == ["default/a"]


@pytest.mark.spec("I9")
async def test_handlers_may_join_and_leave_during_load_and_stop():
    rand = random.Random(11)
    source = make_source()
    informer = make_informer(source)
    stopped_errors = 0

    async def abuse():
        nonlocal stopped_errors
        while True:
            recorder = Recorder()
            try:
                handle = informer.add_handler(on_event=recorder)
            except InformerStopped:
                stopped_errors += 1
                return
            await asyncio.sleep(rand.random() * 0.01)
            await informer.remove_handler(handle, drain=rand.random() < 0.5)
            assert recorder.notes is not None  # raises what the recorder found wrong

    async with asyncio.TaskGroup() as group:
        async with informer.running():
            await settle()
            for _ in range(100):
                group.create_task(abuse())
            alive = set()
            for number in range(10_000):
                name = f"pod-{rand.randrange(20)}"
                if name in alive and rand.random() < 0.3:
                    source.delete(name)
                    alive.discard(name)
                elif name in alive:
                    source.update(name, n=number)
                else:
                    source.create(name)
                    alive.add(name)
                if number % 250 == 0:
                    await asyncio.sleep(rand.random() * 0.01)
            await settle()
            assert sorted(versions(informer.store)) == sorted(alive)
    assert stopped_errors == 100


@pytest.mark.spec("I14")
async def test_a_handle_is_synced_once_its_initial_adds_returned():
    source = make_source("a", "b")

    async def slow(note):
        await asyncio.sleep(10)

    informer = make_informer(source)
    early = informer.add_handler(on_event=slow)
    async with informer.running():
        await settle()
        assert informer.has_synced
        assert not early.has_synced
        late = informer.add_handler(on_event=slow)
        source.create("c")
        assert await early.wait_synced()
        assert now() == pytest.approx(20)
        assert not late.has_synced
        assert await late.wait_synced()
        assert now() == pytest.approx(20, abs=0.01)


@pytest.mark.spec("I14")
async def test_a_handle_is_unsynced_until_its_first_list_is_delivered():
    source = FakeSource[Any]()
    for number in range(2000):
        source.create(f"pod-{number}")
    informer = make_informer(source)
    recorder = Recorder()
    handle = informer.add_handler(on_event=recorder)
    turns_between = 0
    async with informer.running():
        while not handle.has_synced:
            assert not handle.has_synced
            turns_between += 0 < recorder.initial < 2000
            await asyncio.sleep(0)
        assert recorder.initial == 2000
    assert turns_between > 1, "the list was told in pieces"


@pytest.mark.spec("I14")
async def test_a_handle_of_an_empty_type_syncs_at_once():
    informer = make_informer(make_source())
    handle = informer.add_handler(on_add=print)
    assert not handle.has_synced
    async with informer.running():
        assert await handle.wait_synced()
        assert informer.has_synced
        late = informer.add_handler(on_add=print)
        assert late.has_synced


@pytest.mark.spec("I16", "Q10")
async def test_adds_of_a_relist_and_live_adds_are_not_initial():
    source = make_source("a")
    async with informing(source) as (_, recorder):
        source.create("live")
        await settle()
        source.drop_watches(lose_pending=True)
        source.create("relisted")
        source.compact()
        await asyncio.sleep(2)
        assert [(note.key, note.initial) for note in recorder.notes if isinstance(note, Added)] == [
            ("default/a", True),
            ("default/live", False),
            ("default/relisted", False),
        ]


@pytest.mark.spec("I17")
@pytest.mark.parametrize("seed", range(5))
async def test_for_each_key_notifications_chain(seed):
    rand = random.Random(seed)
    source = make_source("a", "b")
    async with informing(source, resync=5.0) as (informer, recorder):
        late = []
        for number in range(300):
            name = rand.choice("abcde")
            if source.key(name) not in source.objects:
                source.create(name)
            elif rand.random() < 0.3:
                source.delete(name)
            else:
                source.update(name, n=number)
            if rand.random() < 0.05:
                source.drop_watches(lose_pending=rand.random() < 0.5)
            if rand.random() < 0.05:
                source.compact()
                source.send_error(Status(code=410, reason="Expired"))
            if rand.random() < 0.05:
                late.append(Recorder())
                informer.add_handler(on_event=late[-1])
            await asyncio.sleep(rand.random() * 2)
        await asyncio.sleep(100)
        # Recorder itself checks that each update's old is the previous object.
        for follower in (recorder, *late):
            assert follower.state == dict(informer.store.items())


@pytest.mark.spec("I24")
async def test_a_stop_ends_watch_then_callbacks_and_drops_the_rest():
    source = make_source("a", "b")
    events = []

    async def slow(note):
        await asyncio.sleep(10)
        events.append((note.key, len(source.open_streams)))

    informer = make_informer(source)
    informer.add_handler(on_event=slow)
    async with informer.running():
        await asyncio.sleep(1)
    assert now() == 10
    assert events == [("default/a", 0)]
    assert versions(informer.store) == {"a": "1", "b": "2"}
    assert informer.lister.get("default", "a")


@pytest.mark.spec("I24")
async def test_callback_that_does_not_end_is_cancelled_after_grace_period():
    source = make_source("a")
    cancelled = []

    async def stuck(note):
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            cancelled.append(now())
            raise

    informer = make_informer(source, stop_grace=3.0)
    informer.add_handler(on_event=stuck)
    async with informer.running():
        await asyncio.sleep(1)
    assert cancelled == [4.0]


@pytest.mark.spec("I24")
async def test_a_second_cancellation_of_run_cuts_the_wait_short():
    source = make_source("a")

    async def stuck(note):
        await asyncio.sleep(1e6)

    informer = make_informer(source)
    informer.add_handler(on_event=stuck)
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(1)
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})
    assert now() == 2
    assert task.cancelled()


@pytest.mark.spec("I8", "I25")
@pytest.mark.parametrize("drain", [False, True])
async def test_a_handler_removed_before_the_start_releases_its_waiters(drain):
    informer = make_informer(make_source("a"))
    recorder = Recorder()
    handle = informer.add_handler(on_event=recorder)
    await informer.remove_handler(handle, drain=drain)
    assert not await asyncio.wait_for(handle.wait_synced(), 1)
    async with informer.running():
        await settle()
        assert recorder.notes == []


@pytest.mark.spec("I25")
async def test_an_informer_that_never_ran_leaves_nothing_behind():
    tasks = asyncio.all_tasks()
    informer = make_informer(make_source("a"))
    handle = informer.add_handler(on_add=print)
    assert asyncio.all_tasks() == tasks
    informer.close()
    assert not await handle.wait_synced()
    assert not await informer.wait_synced()
    del informer, handle
    gc.collect()
    assert asyncio.all_tasks() == tasks


@pytest.mark.spec("I26")
async def test_the_last_version_is_readable_at_any_time():
    source = make_source("a")
    informer = make_informer(source)
    assert informer.last_version == ""
    async with informer.running():
        await settle()
        assert informer.last_version == "1"
        source.create("b")
        await settle()
        assert informer.last_version == "2"
    assert informer.last_version == "2"


@pytest.mark.spec("Q12")
async def test_a_reader_ahead_of_the_store_stops_reading():
    source = FakeSource[Any](batch=100)
    informer = make_informer(source)
    async with informer.running():
        await settle()
        for number in range(10_000):
            source.create(f"pod-{number}")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (stream,) = source.open_streams
        # At most two batches of 1000 wait in the queue; the rest is still the sender's.
        assert len(informer._queue) <= 2000
        assert len(stream._pending) >= 7000
        await settle()
        assert len(informer.store) == 10_000


@pytest.mark.spec("Q15")
async def test_an_informer_lists_again_after_it_could_not_apply_something():
    source = make_source("a")

    class Broken:
        """Metrics that fail once, when the second object is stored."""

        fails = True

        def __getattr__(self, name):
            return lambda **values: None

        def stored(self, *, objects, version):
            if objects == 2 and self.fails:
                self.fails = False
                raise RuntimeError("broken once")

    async with informing(source, metrics=Broken()) as (informer, _):
        source.create("b")
        await asyncio.sleep(2)
        assert [request.resource_version for request in source.lists] == ["0", "2"]
        assert versions(informer.store) == {"a": "1", "b": "2"}
        assert [stream.closes for stream in source.streams] == [1, 0]


@pytest.mark.spec("S11")
async def test_a_resync_never_transforms_again():
    source = make_source("a")
    calls = []

    def transform(obj):
        calls.append(1)
        return {"metadata": obj["metadata"], "marked": True}

    async with informing(source, transform=transform, resync=1.0) as (informer, recorder):
        await asyncio.sleep(20)
        assert len(recorder.notes) >= 20
        assert len(calls) == 1
        assert informer.store.list()[0]["marked"]


async def test_an_unexpected_source_error_is_raised_from_running():
    source = make_source("a")
    source.fail_lists(ZeroDivisionError("a defect"))
    informer = make_informer(source)
    with pytest.raises(ZeroDivisionError):
        async with informer.running():
            await asyncio.sleep(1000)
    assert now() == 0, "the block ends at once"
    assert isinstance(informer.gate.cause, ZeroDivisionError)


async def test_an_informer_reports_its_last_contact_and_relists_on_request():
    source = make_source("a")
    informer = make_informer(source)
    assert informer.last_heard is None
    informer.relist("nothing to do before the start")
    async with informer.running():
        await asyncio.sleep(30)
        assert informer.last_heard == 0
        await asyncio.sleep(40)
        assert informer.last_heard == 60, "bookmarks count"
        informer.relist("the watch looks stuck")
        await asyncio.sleep(1)
        assert [request.resource_version for request in source.lists] == ["0", "1"]
        assert informer.last_heard == pytest.approx(70.8)


async def test_notifications_read_well_with_match():
    source = make_source("a")
    lines = []

    def describe(note):
        match note:
            case Added(obj=obj, initial=True):
                lines.append(f"there was {obj['metadata']['name']}")
            case Updated(old=old, new=new):
                lines.append(f"{old['metadata']['name']} is now {new['n']}")
            case Deleted(key=key, stale=stale):
                lines.append(f"{key} is gone, stale: {stale}")

    informer = make_informer(source)
    handle = informer.add_handler(on_event=describe)
    assert isinstance(handle, Handle)
    async with informer.running():
        await settle()
        source.update("a", n=5)
        source.delete("a")
        await settle()
    assert lines == ["there was a", "a is now 5", "default/a is gone, stale: False"]
