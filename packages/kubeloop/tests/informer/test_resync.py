"""Resync: who is due, when, and what counts as unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.informer.support import Recorder, make_informer, settle

from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time

HOUR = 3600.0


def make_source(*names: str) -> FakeSource[Any]:
    source = FakeSource[Any]()
    for name in names:
        source.create(name)
    return source


def updated(recorder: Recorder) -> list[tuple[float, str]]:
    return [
        (at, entry[1])
        for at, entry in zip(recorder.times, recorder.brief, strict=True)
        if entry[0] == "update"
    ]


@pytest.mark.spec("I20")
def test_check_period_is_least_asked_for_before_start():
    informer = make_informer(make_source(), resync=12 * HOUR)
    handles = []
    seen = [informer.resync_check_period]
    for period in (None, 0, 60, 55, 5):
        handles.append(informer.add_handler(on_add=print, resync=period))
        seen.append(informer.resync_check_period)
    assert seen == [12 * HOUR, 12 * HOUR, 12 * HOUR, 60, 55, 5]
    assert [handle.resync_period for handle in handles] == [12 * HOUR, 0, 60, 55, 5]


@pytest.mark.spec("I20")
def test_periods_below_a_second_are_raised():
    informer = make_informer(make_source(), resync=HOUR)
    handle = informer.add_handler(on_add=print, resync=0.01)
    assert informer.resync_check_period == 1.0
    assert handle.resync_period == 1.0
    assert make_informer(make_source(), resync=0.2).resync_check_period == 1.0


@pytest.mark.spec("I20")
async def test_after_start_smaller_period_is_raised_to_check_period(caplog):
    informer = make_informer(make_source(), resync=30.0)
    async with informer.running():
        await settle()
        handle = informer.add_handler(on_add=print, resync=5.0)
        assert handle.resync_period == 30.0
        assert informer.resync_check_period == 30.0
        assert "raised to the informer's check period 30 s" in caplog.text


@pytest.mark.spec("I20")
async def test_without_a_period_of_its_own_an_informer_never_resyncs(caplog):
    source = make_source("a")
    informer = make_informer(source, resync=0.0)
    recorder = Recorder()
    handle = informer.add_handler(on_event=recorder, resync=5.0)
    assert handle.resync_period == 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    async with informer.running():
        await asyncio.sleep(100)
        assert updated(recorder) == []


@pytest.mark.spec("I21")
async def test_at_each_check_only_handlers_that_are_due_are_resynced():
    source = make_source("a", "b")
    informer = make_informer(source, resync=1.0)
    never, two, three = (Recorder() for _ in range(3))
    for recorder, period in ((never, 0), (two, 2.0), (three, 3.0)):
        informer.add_handler(on_event=recorder, resync=period)
    async with informer.running():
        await asyncio.sleep(6.5)
    assert updated(never) == []
    assert [at for at, name in updated(two) if name == "a"] == [2, 4, 6]
    assert [at for at, name in updated(three) if name == "a"] == [3, 6]
    assert len(updated(three)) == 4


@pytest.mark.spec("I21")
async def test_a_late_handlers_period_counts_from_its_start():
    source = make_source("a")
    informer = make_informer(source, resync=2.0)
    late = Recorder()
    async with informer.running():
        await asyncio.sleep(3)
        informer.add_handler(on_event=late)
        await asyncio.sleep(6)
    # Checks are at 4, 6 and 8; two seconds after 3 the next one is at 6.
    assert [at for at, _ in updated(late)] == [6, 8]


@pytest.mark.spec("I22")
async def test_unchanged_relisted_objects_reach_only_syncing_handlers():
    source = make_source("pod1", "pod2")
    informer = make_informer(source, resync=1.0)
    resyncing, other = Recorder(), Recorder()
    informer.add_handler(on_event=resyncing, resync=1.0)
    informer.add_handler(on_event=other, resync=0)
    async with informer.running():
        await asyncio.sleep(1.5)  # a check: one is flagged, the other is not
        resyncing.clear()
        other.clear()
        source.drop_watches(lose_pending=True)
        source.update("pod2", n=1)
        source.create("pod3")
        source.compact()
        await asyncio.sleep(0.9)
        assert {entry[1] for entry in resyncing.brief} == {"pod1", "pod2", "pod3"}
        assert {entry[1] for entry in other.brief} == {"pod2", "pod3"}


@pytest.mark.spec("I22")
async def test_a_repeated_version_reaches_only_syncing_handlers():
    source = make_source("a")
    informer = make_informer(source, resync=1.0)
    resyncing, other = Recorder(), Recorder()
    informer.add_handler(on_event=resyncing, resync=1.0)
    informer.add_handler(on_event=other, resync=0)
    async with informer.running():
        await asyncio.sleep(1.5)
        resyncing.clear()
        source.replay(since=0)
        source.update("a", n=1)
        await settle()
        assert resyncing.brief == [("update", "a", "1", "1"), ("update", "a", "1", "2")]
        assert other.brief[1:] == [("update", "a", "1", "2")]
        # What it was told last is what it is told as old, though a repeat was kept from it.
        assert len(other.notes) == 2


@pytest.mark.spec("I23")
@pytest.mark.parametrize(("switch", "expected"), [(True, ["a", "b"]), (False, ["b"])])
async def test_with_resync_off_a_relist_repeats_everything_unless_switched_off(switch, expected):
    source = make_source("a", "b")
    informer = make_informer(source, resync=0.0, notify_unchanged=switch)
    recorder = Recorder()
    informer.add_handler(on_event=recorder)
    async with informer.running():
        await settle()
        recorder.clear()
        for _ in range(3):
            source.drop_watches(lose_pending=True)
            source.update("b", n=1)
            source.compact()
            await asyncio.sleep(20)
        assert [entry[1] for entry in recorder.brief] == expected * 3


async def test_a_lagging_handler_is_not_resynced_again():
    source = make_source("a", "b", "c", "d", "e")
    informer = make_informer(source, resync=2.0)
    fast = Recorder()
    informer.add_handler(on_event=fast)
    calls: list[str] = []

    async def slow(note: Any) -> None:
        calls.append(note.key)
        await asyncio.sleep(1.0)

    behind = informer.add_handler(on_event=slow)
    most = 0
    async with informer.running():
        for _ in range(1000):
            await asyncio.sleep(1)
            most = max(most, behind.pending)
    assert most <= 2 * 5, "what waits is bounded, however long it goes on"
    # Five calls, then a second until the next check: busy for five seconds of every six.
    assert len(calls) == pytest.approx(1000 * 5 / 6, abs=5)
    assert len(fast.brief) == pytest.approx(1000 / 2 * 5, abs=10), "and nobody else is kept waiting"
