"""One timer for all deadlines, which runs only while there is a connection."""

from __future__ import annotations

import asyncio

import pytest

from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.quota import FairQuota, QuotaShare
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.proxy.upstream.pool import UpstreamPool

POD = UpstreamAddress("192.0.2.1", 80)

pytestmark = pytest.mark.virtual_time


class Member:
    def __init__(self) -> None:
        self.swept: list[int] = []

    def sweep(self, tick: int) -> None:
        """Remember it."""
        self.swept.append(tick)


class Waiting:
    """A consumer whose Service has no share, so that the pool tries again at each sweep."""

    def __init__(self) -> None:
        self.tried = 0
        waiting = self

        class Share(QuotaShare):
            __slots__ = ()

            def take(self, count: int = 1) -> bool:
                del count
                waiting.tried += 1
                return False

        self.pod_share = Share(FairQuota(capacity=1, reserve=0), bool)

    def connected(self, connection) -> None:
        """Take nothing."""

    def connect_failed(self, address) -> None:
        """Go nowhere."""


@pytest.fixture
async def sweeper():
    sweeper = DeadlineSweeper()
    sweeper.start()
    yield sweeper
    sweeper.stop()


async def test_without_connections_there_is_no_timer(sweeper):
    first, second = Member(), Member()
    await asyncio.sleep(100)
    assert sweeper.tick == 0
    sweeper.add(first)
    await asyncio.sleep(3.5)
    assert first.swept == [1, 2, 3]
    sweeper.discard(first)
    await asyncio.sleep(100)
    assert sweeper.tick == 4
    sweeper.add(second)
    await asyncio.sleep(2.5)
    assert (first.swept, second.swept) == ([1, 2, 3], [5, 6])


async def test_connections_that_follow_each_other_at_once_share_one_timer(sweeper):
    last = Member()
    for _ in range(95):
        sweeper.add(last)
        sweeper.discard(last)
        last = Member()
        sweeper.add(last)
        await asyncio.sleep(0.1)
        sweeper.discard(last)
    assert sweeper.tick == 9


async def test_a_connection_that_comes_before_the_start_or_while_others_are_swept_is_swept():
    sweeper, last = DeadlineSweeper(), Member()

    class Replaced(Member):
        def sweep(self, tick: int) -> None:
            super().sweep(tick)
            sweeper.discard(self)
            sweeper.add(last)

    early = Replaced()
    sweeper.add(early)
    sweeper.start()
    await asyncio.sleep(2.5)
    assert (early.swept, last.swept) == ([1], [2])
    sweeper.stop()


async def test_after_the_stop_no_connection_starts_a_timer(sweeper):
    late = Member()
    sweeper.stop()
    sweeper.add(late)
    await asyncio.sleep(10)
    assert late.swept == []


async def test_the_pool_is_swept_while_it_knows_a_pod(sweeper):
    pool, waiting = UpstreamPool(limits=Limits(), sweeper=sweeper), Waiting()
    await asyncio.sleep(100)
    for fresh in (False, True):
        waiting.tried, before = 0, sweeper.tick
        pool.open(POD, waiting, fresh=fresh)
        await asyncio.sleep(3.5)
        assert (waiting.tried, sweeper.tick) == (4, before + 3)
        pool.cancel(POD, waiting, fresh=fresh)
        await asyncio.sleep(100)
        assert sweeper.tick == before + 4
    await pool.aclose()
