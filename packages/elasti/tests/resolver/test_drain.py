"""Leaving, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from elasti.resolver.drain import drain

pytestmark = pytest.mark.virtual_time


class Leaving:
    def __init__(self, *, listed_until=0.0, queue_until=0.0, busy_until=0.0):
        self.start = asyncio.get_running_loop().time()
        self.listed_until, self.queue_until, self.busy_until = listed_until, queue_until, busy_until
        self.stopped_at = self.shut_at = -1.0

    def now(self):
        return asyncio.get_running_loop().time() - self.start

    def is_listed(self):
        return self.now() < self.listed_until

    def waiting(self):
        return int(self.now() < self.queue_until)

    def busy(self):
        return int(self.now() < self.busy_until)

    def stop_new_handshakes(self):
        self.shut_at = self.now()

    def stop_accepting(self):
        self.stopped_at = self.now()


async def test_it_accepts_until_it_is_out_of_every_slice_for_the_settle():
    leaving = Leaving(listed_until=40.0)
    assert await drain(leaving, settle=15, timeout=600)
    assert 55.0 - 0.5 <= leaving.stopped_at <= 55.5


async def test_it_accepts_while_the_kernel_holds_connections():
    leaving = Leaving(queue_until=30.0)
    assert await drain(leaving, settle=15, timeout=600)
    assert leaving.stopped_at >= 30.0
    assert 15.0 <= leaving.shut_at < leaving.stopped_at


async def test_it_waits_for_what_is_under_way():
    leaving = Leaving(busy_until=100.0)
    assert await drain(leaving, settle=15, timeout=600)
    assert leaving.now() >= 100.0
    assert leaving.stopped_at < 16.0


async def test_it_does_not_wait_indefinitely():
    leaving = Leaving(listed_until=1e9)
    assert not await drain(leaving, settle=15, timeout=600)
    assert leaving.now() == pytest.approx(600)
    assert leaving.stopped_at == pytest.approx(600)
