"""A silent watch is compared with a second one, and given up only if that shows more."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.informer.support import (
    EXACT,
    ScriptedSource,
    ScriptedStream,
    added,
    bookmark,
    now,
    pod,
    reflecting,
)

from kubeloop.client.errors import ConnectionRefused
from kubeloop.objects.list_watch import Page
from kubeloop.testing.fake_errors import gone

pytestmark = [pytest.mark.virtual_time, pytest.mark.spec("R39")]

PROBING = dataclasses.replace(EXACT, probe_after=30.0)


def quiet() -> ScriptedStream:
    """Return a watch on which nothing comes, and which nothing ends."""
    return ScriptedStream(ends=False)


async def stalled(_options: object) -> ScriptedStream:
    await asyncio.sleep(3600)
    raise AssertionError


def source_of(*watches: Any) -> ScriptedSource:
    return ScriptedSource([Page([pod("a", 5)], "5")], watches)


async def test_a_watch_that_misses_an_event_is_replaced_within_45_seconds():
    missed = [added("b", 7)]
    source = source_of(quiet(), ScriptedStream(missed), ScriptedStream(missed, ends=False))
    async with reflecting(source, options=PROBING) as (_, sink):
        await asyncio.sleep(45)
        assert list(sink.items) == ["default/a", "default/b"]
        assert source.watch_times == [0, 30, 32]
        assert source.watch_versions == ["5", "5", "5"]
        assert [request.timeout_seconds for request in source.watches] == [300, 1, 300]
        assert len(source.lists) == 1
        assert [stream.closes for stream in source.streams] == [1, 1, 0]


async def test_an_event_missed_later_is_found_by_a_later_probe():
    source = source_of(
        quiet(), *(ScriptedStream() for _ in range(3)), ScriptedStream([added("b", 7)])
    )
    async with reflecting(source, options=PROBING):
        await asyncio.sleep(130)
        assert source.watch_times == [0, 30, 60, 90, 120, 122]


async def test_a_quiet_watch_stays():
    first = quiet()
    source = source_of(first, *(ScriptedStream([bookmark(6)]) for _ in range(5)))
    async with reflecting(source, options=PROBING) as (reflector, _):
        await asyncio.sleep(100)
        assert len(source.watches) == 4
        assert first.closes == 0
        assert reflector.doubt == ""


async def test_watch_that_is_heard_is_not_probed():
    first = quiet()
    source = source_of(first)
    async with reflecting(source, options=PROBING):
        for version in range(6, 16):
            await asyncio.sleep(29)
            first.push(bookmark(version))
        assert len(source.watches) == 1


async def test_an_event_that_is_only_late_keeps_the_watch():
    first = quiet()
    source = source_of(first, ScriptedStream([added("b", 7)]))
    async with reflecting(source, options=PROBING) as (_, sink):
        asyncio.get_running_loop().call_at(now() + 31, first.push, added("b", 7))
        await asyncio.sleep(45)
        assert list(sink.items) == ["default/a", "default/b"]
        assert first.closes == 0


@pytest.mark.parametrize("failure", [ConnectionRefused("down"), stalled])
async def test_server_that_answers_no_probe_leaves_the_watch_in_doubt(failure):
    first = quiet()
    source = source_of(first, failure)
    async with reflecting(source, options=PROBING) as (reflector, _):
        await asyncio.sleep(29)
        assert reflector.doubt == ""
        await asyncio.sleep(17)
        assert "a second watch failed" in reflector.doubt
        assert first.closes == 0
        first.push(bookmark(9))
        await asyncio.sleep(0.1)
        assert reflector.doubt == ""


async def test_410_for_the_second_watch_says_nothing_of_the_first():
    first = quiet()
    source = source_of(first, gone("5"))
    async with reflecting(source, options=PROBING) as (reflector, _):
        await asyncio.sleep(45)
        assert (reflector.doubt, first.closes) == ("", 0)
