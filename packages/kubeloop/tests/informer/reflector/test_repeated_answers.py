"""Whatever a server answers for ever, it is asked at a bounded rate, and the collector stays on."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.informer.support import (
    EXACT,
    STREAMING,
    FakeControl,
    ScriptedSource,
    ScriptedStream,
    added,
    bookmark,
    end_bookmark,
    pod,
    reflecting,
)

from kubeloop.client.errors import ConnectionRefused, RequestTimeout
from kubeloop.informer.gc_pause import GcGuard, GcPauser
from kubeloop.informer.reflector.listing import _EMPTY_PAGES
from kubeloop.objects.list_watch import Page, WatchEvent
from kubeloop.testing.fake_errors import api_error, gone, too_large

pytestmark = pytest.mark.virtual_time

MINUTES = 30
# Six in a burst, twice a minute, and a few more while the backoff grows.
LIMIT = MINUTES * 12 + 40


async def hang(_options: object) -> Any:
    await asyncio.sleep(65)
    raise RequestTimeout("no answer")


def expired(_options: object) -> ScriptedStream:
    return ScriptedStream([WatchEvent("ERROR", {"code": 410, "reason": "Expired"})])


def one_event(_options: object) -> ScriptedStream:
    return ScriptedStream([added("a", 6)])


def one_bookmark(_options: object) -> ScriptedStream:
    return ScriptedStream([bookmark(6)])


def failed(_options: object) -> ScriptedStream:
    return ScriptedStream([added("a", 6), WatchEvent("ERROR", {"code": 500})])


def list_and_end(_options: object) -> ScriptedStream:
    return ScriptedStream([end_bookmark(5)])


def endless_page(_options: object) -> Page[Any]:
    return Page([], "5", continue_token="more")


REFUSALS = [
    gone("7"),
    too_large("7", 3),
    api_error(429, "TooManyRequests"),
    api_error(500, "InternalError"),
    api_error(401, "Unauthorized"),
    ConnectionRefused("refused"),
    hang,
]
STREAMS = [expired, one_event, one_bookmark, failed, lambda _: ScriptedStream()]


def name_of(answer: Any) -> str:
    return getattr(answer, "__name__", type(answer).__name__)


async def asked(source: ScriptedSource, options: Any) -> int:
    """Return how many requests come in half an hour; the collector must be on all the time."""
    control = FakeControl()
    guard = GcGuard(collector=GcPauser(control))
    async with reflecting(source, options=options, collector=guard, on_error=lambda _: None):
        for _ in range(MINUTES * 60):
            await asyncio.sleep(1)
            assert control.enabled
    return len(source.lists) + len(source.watches)


@pytest.mark.spec("R56", "R70")
@pytest.mark.parametrize("answer", [*REFUSALS, *STREAMS, list_and_end], ids=name_of)
async def test_a_streaming_list_that_never_succeeds(answer):
    source = ScriptedSource(
        [api_error(500)] * 100_000, [answer] * 100_000, supports_watch_list=True
    )
    assert await asked(source, STREAMING) <= LIMIT


@pytest.mark.spec("R70")
@pytest.mark.parametrize("answer", [*REFUSALS, endless_page], ids=name_of)
async def test_a_list_that_never_succeeds(answer):
    source = ScriptedSource([answer] * 100_000)
    # A list of empty pages is given up after so many requests.
    pages = _EMPTY_PAGES + 1 if answer is endless_page else 1
    assert await asked(source, EXACT) <= LIMIT * pages


@pytest.mark.spec("R24", "R70")
@pytest.mark.parametrize("answer", [*REFUSALS, *STREAMS], ids=name_of)
@pytest.mark.parametrize("window", [0.0, 1e9])
async def test_a_watch_that_never_lasts(answer, window):
    source = ScriptedSource([Page([pod("a")], "5")] * 100_000, [answer] * 100_000)
    options = dataclasses.replace(EXACT, internal_error_window=window)
    assert await asked(source, options) <= LIMIT


@pytest.mark.spec("R24")
async def test_a_few_watches_closed_in_a_row_are_reopened_at_once():
    closing = [ScriptedStream([added("a", number)]) for number in range(6, 11)]
    source = ScriptedSource([Page([], "5")], [*closing, ScriptedStream(ends=False)])
    async with reflecting(source) as (_, sink):
        await asyncio.sleep(0.1)
        assert len(source.watches) == 6
        assert [entry[0] for entry in sink.log] == ["replace", *["put"] * 5]
