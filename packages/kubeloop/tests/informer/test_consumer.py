"""What becomes of queue entries: the store first, then the handlers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.informer.support import Recorder, RecordingMetrics, pod, settle, versions

from kubeloop.informer.consumer import SLICE, QueueConsumer
from kubeloop.informer.dispatch import Dispatcher
from kubeloop.informer.handlers import Updated
from kubeloop.informer.listener import ProcessorListener
from kubeloop.informer.queue import DeltaQueue
from kubeloop.informer.reflector.events import ObjectPreparer
from kubeloop.informer.store import Store, StoreView
from kubeloop.objects.meta import DICT_ACCESS
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time


class Rig:
    """A queue, a store and one recording handler around an applier."""

    def __init__(self, *, unknown_deletes: bool = False, metrics=None) -> None:
        self.queue = DeltaQueue[Any]()
        self.store = Store[Any]()
        self.view = StoreView(self.store)
        self.dispatcher = Dispatcher[Any](name="rig")
        self.recorder = Recorder()
        self.synced = 0
        self.failures: list[Any] = []
        self.preparer = ObjectPreparer[Any](DICT_ACCESS)
        self.consumer = QueueConsumer(
            queue=self.queue,
            store=self.store,
            dispatcher=self.dispatcher,
            access=DICT_ACCESS,
            metrics=metrics or RecordingMetrics(),
            on_synced=self._on_synced,
            on_failure=self.failures.append,
            unknown_deletes=unknown_deletes,
        )

    def _on_synced(self) -> None:
        self.synced += 1
        self.dispatcher.synced()

    def listen(self, deliver, name="listener") -> ProcessorListener[Any]:
        listener = ProcessorListener(name=name, deliver=deliver)
        self.dispatcher.add(listener)
        return listener

    def put(self, *objects) -> None:
        self.queue.put([self.preparer.add(obj) for obj in objects])

    def delete(self, obj) -> None:
        self.queue.put([self.preparer.delete(obj)])

    def replace(self, version, *objects) -> None:
        self.queue.replace({DICT_ACCESS.key(obj): obj for obj in objects}, str(version))

    @contextlib.asynccontextmanager
    async def running(self):
        self.listen(self.recorder, "recorder")
        self.dispatcher.start()
        task = asyncio.create_task(self.consumer.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task})
            await self.dispatcher.stop(grace=1)


@pytest.mark.spec("Q5", "Q10")
async def test_a_list_notifies_deletes_first_then_list_order():
    rig = Rig()
    stores = []
    rig.listen(lambda _note: stores.append(versions(rig.view)))
    async with rig.running():
        rig.replace(3, pod("1", 1), pod("2", 2), pod("3", 3))
        await settle()
        assert rig.recorder.brief == [
            ("initial", "1", "1"),
            ("initial", "2", "2"),
            ("initial", "3", "3"),
        ]
        assert rig.synced == 1
        rig.recorder.clear()
        stores.clear()
        rig.replace(6, pod("1", 4), pod("2", 5), pod("4", 6))
        await settle()
        assert rig.recorder.brief == [
            ("stale", "3", "3"),
            ("update", "1", "1", "4"),
            ("update", "2", "2", "5"),
            ("add", "4", "6"),
        ]
        assert stores == [{"1": "4", "2": "5", "4": "6"}] * 4
        assert rig.view.version == "6"
        assert rig.synced == 1


@pytest.mark.spec("Q4")
async def test_a_list_reports_keys_that_were_only_queued_before_it():
    rig = Rig()
    async with rig.running():
        rig.replace(1, pod("known", 1))
        rig.put(pod("queued", 2))
        rig.delete(pod("gone", 3))
        rig.replace(9, pod("new", 9))
        await settle()
        assert rig.recorder.brief == [
            ("initial", "known", "1"),
            ("add", "queued", "2"),
            ("stale", "known", "1"),
            ("stale", "queued", "2"),
            ("add", "new", "9"),
        ]


@pytest.mark.spec("Q4")
async def test_a_delete_queued_before_the_list_is_not_reported_again():
    rig = Rig()
    async with rig.running():
        rig.replace(1, pod("x", 1))
        rig.delete(pod("x", 2))
        rig.replace(3)
        await settle()
        assert rig.recorder.brief == [("initial", "x", "1"), ("delete", "x", "2")]


@pytest.mark.spec("Q6")
async def test_of_duplicate_keys_in_a_list_the_last_wins():
    rig = Rig()
    async with rig.running():
        snapshot = {}
        for obj in (pod("a", 1), pod("b", 2), pod("a", 3)):
            snapshot[DICT_ACCESS.key(obj)] = obj
        rig.queue.replace(snapshot, "3")
        await settle()
        assert versions(rig.view) == {"a": "3", "b": "2"}
        assert rig.recorder.brief == [("initial", "a", "3"), ("initial", "b", "2")]


@pytest.mark.spec("Q7")
async def test_resync_repeats_what_is_in_store_when_turn_comes():
    rig = Rig()
    async with rig.running():
        rig.replace(2, pod("a", 1), pod("x", 2))
        await settle()
        rig.recorder.clear()
        rig.delete(pod("x", 3))
        rig.put(pod("a", 4))
        rig.queue.resync()
        await settle()
        assert rig.recorder.brief == [
            ("delete", "x", "3"),
            ("update", "a", "1", "4"),
            ("update", "a", "4", "4"),
        ]
        last = rig.recorder.notes[-1]
        assert last.old is last.new


@pytest.mark.spec("Q30")
async def test_notifications_follow_the_store_not_the_event_type():
    rig = Rig()
    async with rig.running():
        rig.put(pod("a", 1))
        rig.put(pod("a", 2))
        await settle()
        assert rig.recorder.brief == [("add", "a", "1"), ("update", "a", "1", "2")]


@pytest.mark.spec("Q31")
async def test_the_store_changes_before_the_handler_is_notified():
    rig = Rig()
    seen = []
    rig.listen(lambda note: seen.append(versions(rig.view).get("a")))
    async with rig.running():
        for change in (rig.put, rig.put, rig.delete):
            change(pod("a", len(seen) + 1))
            await settle()
        assert seen == ["1", "2", None]


@pytest.mark.spec("Q3")
async def test_a_delete_of_an_unknown_key_is_suppressed():
    rig = Rig()
    async with rig.running():
        rig.delete(pod("never-seen", 4))
        await settle()
        assert rig.recorder.brief == []
        assert rig.view.version == "4"


@pytest.mark.spec("Q3")
async def test_delete_of_unknown_key_is_passed_on_on_request():
    rig = Rig(unknown_deletes=True)
    seen: list[Any] = []
    rig.listen(seen.append)
    async with rig.running():
        rig.delete(pod("never-seen", 4))
        await settle()
        assert [note.key for note in seen] == ["default/never-seen"]
        assert not seen[0].stale


@pytest.mark.spec("Q11", "I11")
async def test_long_batches_are_applied_in_slices():
    rig = Rig()
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with rig.running():
        counting = asyncio.create_task(count_turns())
        rig.put(*(pod(f"pod-{n}", n + 1) for n in range(20_000)))
        await eventually(lambda: rig.view.version == "20000", every=0)
        counting.cancel()
        # Where time stands still, a rest follows every four slices.
        assert turns >= 20_000 / (4 * SLICE)
        assert len(rig.view) == 20_000


@pytest.mark.spec("Q11")
async def test_slice_with_changes_of_one_key_delivers_each_of_them():
    rig = Rig()
    async with rig.running():
        rig.put(pod("a", 1), pod("a", 2), pod("b", 3), pod("a", 4))
        await settle()
        assert rig.recorder.brief == [
            ("add", "a", "1"),
            ("update", "a", "1", "2"),
            ("add", "b", "3"),
            ("update", "a", "2", "4"),
        ]


class BrokenMetrics(RecordingMetrics):
    """Fails while a store of a given size is reported."""

    fails = 0

    def stored(self, **values):
        if self.fails:
            self.fails -= 1
            raise RuntimeError("metrics are broken")


@pytest.mark.spec("Q15")
async def test_a_failed_list_is_counted_unsynced_and_relisted():
    metrics = BrokenMetrics()
    metrics.fails = 1
    rig = Rig(metrics=metrics)
    async with rig.running():
        rig.replace(1, pod("a", 1))
        await settle()
        assert rig.synced == 0
        assert not rig.queue.has_synced
        assert [str(error) for error in rig.failures] == ["metrics are broken"]
        assert ("apply_failed", {}) in metrics.calls
        rig.replace(2, pod("a", 2))
        await settle()
        assert rig.synced == 1


@pytest.mark.spec("Q15")
async def test_a_failed_change_requests_a_relist():
    metrics = BrokenMetrics()
    rig = Rig(metrics=metrics)
    async with rig.running():
        rig.replace(1, pod("a", 1))
        await settle()
        metrics.fails = 1
        rig.put(pod("b", 2))
        rig.put(pod("c", 3))
        await settle()
        assert len(rig.failures) == 1
        assert sorted(versions(rig.view)) == ["a", "b", "c"]


@pytest.mark.spec("S9")
async def test_store_is_complete_up_to_last_change_list_or_bookmark():
    rig = Rig()
    async with rig.running():
        assert rig.view.version == ""
        seen = []
        for step in (
            lambda: rig.replace(5, pod("a", 3)),
            lambda: rig.put(pod("a", 7)),
            lambda: rig.delete(pod("a", 8)),
            lambda: rig.put(pod("b", 10), pod("c", 9)),
            lambda: rig.put(pod("d", "not-a-number")),
            lambda: rig.put({"metadata": {"name": "bare"}}),
            lambda: rig.queue.bookmark("20"),
            lambda: rig.replace(4, pod("a", 3)),
        ):
            step()
            await settle()
            seen.append(rig.view.version)
        assert seen == ["5", "7", "8", "9", "9", "9", "20", "4"]


@pytest.mark.spec("I22")
async def test_objects_without_a_version_never_count_as_unchanged():
    rig = Rig()
    quiet: list[Any] = []
    listener = rig.listen(quiet.append)
    async with rig.running():
        listener.syncing = False
        rig.put({"metadata": {"name": "bare"}, "n": 1})
        rig.put({"metadata": {"name": "bare"}, "n": 2})
        await settle()
        assert [type(note) for note in quiet][1:] == [Updated]
