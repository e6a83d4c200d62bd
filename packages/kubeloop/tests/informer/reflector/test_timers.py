"""When a reflector rests, reports, resyncs and stops."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random

import pytest
from tests.informer.support import (
    EXACT,
    ScriptedSource,
    ScriptedStream,
    added,
    now,
    reflecting,
    settle,
)

from kubeloop.aio.backoff import QuietResetBackoff
from kubeloop.client.errors import ConnectionRefused, KubeError
from kubeloop.informer.reflector.source import ReflectorOptions
from kubeloop.informer.reflector.timers import SilentWatch, StreamGuard
from kubeloop.objects.list_watch import Page, WatchEvent
from kubeloop.testing.fake_errors import api_error

pytestmark = pytest.mark.virtual_time

EXPIRED = WatchEvent("ERROR", {"code": 410, "reason": "Expired"})


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@pytest.mark.spec("R70")
async def test_backoff_doubles_to_30_seconds_with_jitter():
    rand = random.Random(3).random
    source = ScriptedSource([api_error(500)] * 400)
    options = ReflectorOptions(rand=rand, watch_list=False, backoff_reset=1e9)
    async with reflecting(source, options=options, on_error=lambda _: None):
        await asyncio.sleep(9000)
    delays = gaps(source.list_times)
    for delay, base in zip(delays, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6] + [30] * 100, strict=False):
        assert base - 1e-6 <= delay < 2 * base + 1e-6
    assert min(delays[6:]) < 33
    assert max(delays[6:]) > 57


@pytest.mark.spec("R70")
async def test_lists_and_watch_retries_share_one_backoff():
    source = ScriptedSource(
        [api_error(500), api_error(500), Page([], "5")], [ConnectionRefused("down")] * 2
    )
    async with reflecting(source, on_error=lambda _: None):
        await asyncio.sleep(60)
        assert source.list_times == pytest.approx([0, 0.8, 2.4])
        assert source.watch_times == pytest.approx([2.4, 2.4 + 3.2, 2.4 + 3.2 + 6.4])


@pytest.mark.spec("R71")
async def test_one_delay_follows_every_cycle_with_or_without_an_error():
    source = ScriptedSource(
        [Page([], "5"), api_error(500), Page([], "6"), Page([], "7")],
        [ScriptedStream([added("a", 6), EXPIRED])] * 1 + [ScriptedStream([added("a", 7), EXPIRED])],
    )
    async with reflecting(source, on_error=lambda _: None):
        await asyncio.sleep(20)
        assert gaps(source.list_times) == pytest.approx([0.8, 1.6, 3.2])


@pytest.mark.spec("R72")
@pytest.mark.parametrize(("quiet", "expected"), [(119.0, 1.6), (121.0, 0.8)])
async def test_two_minutes_without_a_delay_reset_the_backoff(quiet, expected):
    backoff = QuietResetBackoff(EXACT.backoff, reset_after=EXACT.backoff_reset, rand=lambda: 0.0)
    assert backoff.next_delay() == pytest.approx(0.8)
    await asyncio.sleep(quiet)
    assert backoff.next_delay() == pytest.approx(expected)


@pytest.mark.spec("R72")
async def test_outage_longer_than_two_minutes_does_not_reset_backoff():
    source = ScriptedSource([Page([], "5")], [ConnectionRefused("down")] * 12)
    async with reflecting(source):
        await asyncio.sleep(220)
        assert gaps(source.watch_times)[-4:] == pytest.approx([30.0] * 4)


@pytest.mark.spec("R72")
async def test_watch_that_lived_for_two_minutes_starts_backoff_again():
    streams = [ScriptedStream(ends=False) for _ in range(3)]
    source = ScriptedSource([Page([], "5")] * 4, list(streams))
    async with reflecting(source):
        for stream in streams[:2]:
            await asyncio.sleep(130)
            stream.push(EXPIRED)
        await asyncio.sleep(1)
        assert source.list_times == pytest.approx([0, 130.8, 260.8])


@pytest.mark.spec("R73")
async def test_the_error_handler_is_called_once_per_failure():
    calls = []

    def handler(error):
        calls.append(now())
        raise RuntimeError("the handler itself fails")

    source = ScriptedSource([api_error(500), api_error(500), Page([], "5")])
    async with reflecting(source, on_error=handler):
        await asyncio.sleep(10)
        assert calls == pytest.approx([0, 0.8])
        assert len(source.lists) == 3


@pytest.mark.spec("R73")
async def test_without_handler_expiries_are_logged_quietly_and_others_as_errors(caplog):
    source = ScriptedSource([api_error(410, "Expired"), api_error(410, "Expired"), api_error(500)])
    with caplog.at_level("INFO", "kubeloop.informer.reflector.reflector"):
        async with reflecting(source):
            await asyncio.sleep(10)
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]


@pytest.mark.spec("R74")
async def test_the_resync_timer_rearms_while_a_watch_runs():
    source = ScriptedSource([Page([], "5")])
    async with reflecting(source, resync_period=lambda: 10.0) as (reflector, sink):
        await asyncio.sleep(35)
        assert sink.resyncs == [10, 20, 30]
    assert not reflector._resync.armed


@pytest.mark.spec("R74")
async def test_no_resync_happens_unless_a_client_is_due():
    due = False
    source = ScriptedSource([Page([], "5")])
    async with reflecting(source, resync_period=lambda: 10.0, should_resync=lambda: due) as (
        _,
        sink,
    ):
        await asyncio.sleep(25)
        assert sink.resyncs == []
        due = True
        await asyncio.sleep(10)
        assert sink.resyncs == [30]


@pytest.mark.spec("R74")
async def test_reopened_watches_do_not_restart_resync_timer_and_relists_do():
    first, second = ScriptedStream(ends=False), ScriptedStream(ends=False)
    source = ScriptedSource([Page([], "5")] * 2, [first, second])
    async with reflecting(source, resync_period=lambda: 10.0) as (_, sink):
        await asyncio.sleep(6)
        first.end()
        await asyncio.sleep(6)
        assert sink.resyncs == [10]
        second.push(EXPIRED)
        await asyncio.sleep(12)
        assert sink.resyncs == [10, pytest.approx(12.8 + 10)]


@pytest.mark.spec("R74")
async def test_failing_watches_leave_no_timer_behind():
    source = ScriptedSource([Page([], "5")] * 50, [api_error(403)] * 50)
    async with reflecting(source, resync_period=lambda: 5.0, on_error=lambda _: None) as (_, sink):
        await asyncio.sleep(600)
        assert len(source.watches) > 15
        # A rest is longer than the period, but no watch phase runs during it.
        assert sink.resyncs == []


@pytest.mark.spec("R75")
async def test_a_resync_error_ends_the_watch_after_exactly_that_resync():
    source = ScriptedSource([Page([], "5")] * 2)
    async with reflecting(source, resync_period=lambda: 10.0) as (_, sink):

        def fail_second():
            if len(sink.resyncs) == 2:
                raise KubeError("resync failed")

        sink.on_resync = fail_second
        await asyncio.sleep(20.5)
        assert sink.resyncs == [10, 20]
        assert source.streams[0].closes == 1
        await asyncio.sleep(0.5)
        assert source.list_times == [0, pytest.approx(20.8)]


@pytest.mark.spec("Q15")
async def test_a_relist_requested_while_a_watch_opens_is_kept():
    async def slow_to_open(_options):
        await asyncio.sleep(5)
        return ScriptedStream([added("a", 6)], ends=False)

    source = ScriptedSource([Page([], "5"), Page([], "7")], [slow_to_open])
    async with reflecting(source) as (reflector, _):
        await asyncio.sleep(2)
        reflector.relist(RuntimeError("something was lost"))
        await asyncio.sleep(5)
        assert source.list_times == [0, pytest.approx(5.8)]
        assert source.streams[0].closes == 1
        assert source.watch_versions == ["5", "7"]


@pytest.mark.spec("R76", "R77")
async def test_run_returns_only_after_everything_has_ended():
    source = ScriptedSource([Page([], "5")])
    others = asyncio.all_tasks()
    async with reflecting(source, resync_period=lambda: 10.0) as (reflector, _):
        await settle()
        assert len(asyncio.all_tasks() - others) == 1
    assert asyncio.all_tasks() == others
    assert source.streams[0].closes == 1
    assert not reflector._resync.armed


@pytest.mark.spec("R77")
async def test_cancellation_is_never_swallowed():
    """Cancelled in a list, in a rest and in a watch, run() raises CancelledError at once."""

    async def hang(_options):
        await asyncio.sleep(1e6)

    in_rest = ScriptedSource([api_error(500)] * 5)
    in_list = ScriptedSource([hang])
    in_open = ScriptedSource([Page([], "1")], [hang])
    in_read = ScriptedSource([Page([], "1")])
    for source in (in_rest, in_list, in_open, in_read):
        began = now()
        async with reflecting(source, on_error=lambda _: None):
            await asyncio.sleep(0.5)
        assert now() - began == 0.5


@pytest.mark.spec("R70")
def test_the_default_backoff_is_the_one_specified():
    backoff = ReflectorOptions().backoff
    assert dataclasses.astuple(backoff) == (0.8, 2.0, 1.0, None, 30.0)
    assert ReflectorOptions().backoff_reset == 120.0


async def test_silence_ends_a_guarded_stream_and_leaves_no_timer():
    with pytest.raises(SilentWatch, match="no byte in 10 s"):
        async with StreamGuard(silence=10):
            await asyncio.sleep(100)
    assert now() == 10
    guard = StreamGuard(silence=10)
    async with guard:
        await asyncio.sleep(5)
    assert guard._timer is not None
    assert guard._timer.cancelled()
